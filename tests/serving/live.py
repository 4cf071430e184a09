"""A real server in a thread of this process, and plain clients that can also misbehave."""

import asyncio
import http.client
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
import pytest
import uvloop

from tests.e2e.child import FRONTENDS
from tests.protocol.v2_requests import encode_infer_request
from tests.serving import onnx_files
from tests.serving.live_frontend import Frontends
from tests.serving.onnx_files import graph, node, value, write_model
from tpx.options import build
from tpx.protocol import messages
from tpx.protocol.tensors import Tensor
from tpx.serving.options import ServeConfig
from tpx.serving.server import InferenceServer

SERVICE = "/inference.GRPCInferenceService/"
IDLE_S = 30.0
"""By default the server closes a connection after 120 s without a request."""
in_one_process = pytest.mark.skipif(
    FRONTENDS > 0, reason="looks at connections and logs, which frontends have in processes of their own"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An HTTP response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def head_size(self) -> int:
        return int(self.headers["inference-header-content-length"])

    @property
    def head(self) -> Any:
        """The JSON part of an inference response with binary tensors."""
        return json.loads(self.body[: self.head_size])

    @property
    def tail(self) -> bytes:
        """The binary tensors."""
        return self.body[self.head_size :]

    @property
    def error(self) -> str:
        return str(self.json["error"])


class Live:
    """A running server: its ports, its object, and one kept-alive HTTP connection per thread."""

    def __init__(self, config: ServeConfig) -> None:
        self._config = config
        self._ready = threading.Event()
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: BaseException | None = None
        self._local = threading.local()
        self._connections: list[http.client.HTTPConnection] = []
        self.ports: dict[str, int] = {}
        self.finished: bool | None = None
        self._thread = threading.Thread(target=self._run, name="live-server")

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.Loop) as runner:
                runner.run(self._serve())
        except BaseException as exc:  # noqa: BLE001 (raised again in the test's thread)
            self._failure = exc
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._stop, self._loop = asyncio.Event(), asyncio.get_running_loop()
        frontends = Frontends(self._config, FRONTENDS) if FRONTENDS else None
        try:
            spec = None if frontends is None else frontends.spec
            self.server = InferenceServer(self._config, None, spec)
            endpoints = await self.server.start()
            self.ports = {endpoint.service: endpoint.port for endpoint in endpoints}
            self._ready.set()
            await self._stop.wait()
            self.finished = await self.server.stop()
        finally:
            if frontends is not None:
                frontends.close()

    def start(self) -> "Live":
        self._thread.start()
        assert self._ready.wait(30)
        if self._failure is not None:
            raise self._failure
        return self

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that it runs on."""
        assert self._loop is not None
        return self._loop

    def ask_to_stop(self) -> None:
        """What a signal does."""
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)

    def stop(self) -> None:
        for connection in self._connections:
            connection.close()
        self.ask_to_stop()
        self._thread.join(30)
        assert not self._thread.is_alive()
        if self._failure is not None:
            raise self._failure

    # HTTP

    @property
    def http_port(self) -> int:
        return self.ports["HTTPService"]

    def http(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request on this thread's connection, or on a new one if it may have been closed as idle."""
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=50)
            self._local.connection = connection
            self._connections.append(connection)
        elif time.monotonic() - self._local.used > IDLE_S:
            connection.close()
        self._local.used = time.monotonic()
        try:
            connection.request(method, path, body or None, dict(headers or {}))
            response = connection.getresponse()
            return Answer(
                status=response.status,
                headers={name.lower(): text for name, text in response.getheaders()},
                body=response.read(),
            )
        except BaseException:
            connection.close()  # the next test would get this response, or none
            raise

    def get(self, path: str) -> Answer:
        return self.http("GET", path)

    def infer(self, model: str, request: Any, tail: bytes = b"", version: str = "", **headers: str) -> Answer:
        """Inference with a JSON head, given as an object or as its bytes, and what lies behind it."""
        head = request if isinstance(request, bytes) else json.dumps(request).encode()
        path = f"/v2/models/{model}{'/versions/' + version if version else ''}/infer"
        sent = {name.replace("_", "-"): text for name, text in headers.items()}
        if tail and "Inference-Header-Content-Length" not in sent:
            sent["Inference-Header-Content-Length"] = str(len(head))
        return self.http("POST", path, head + tail, sent)

    def infer_binary(self, model: str, arrays: Mapping[str, npt.NDArray[Any]], **fields: Any) -> Answer:
        """Inference with binary tensors both ways."""
        tensors = [Tensor.from_numpy(name, array) for name, array in arrays.items()]
        head, tail = encode_infer_request(tensors, **fields)
        return self.infer(model, head, b"".join(tail), **{"Inference-Header-Content-Length": str(len(head))})

    def raw_http(self) -> socket.socket:
        """A connection that the test writes itself."""
        return socket.create_connection(("127.0.0.1", self.http_port), timeout=10)

    def begin(self, path: str, value: Any) -> socket.socket:
        """POST on a connection of its own, whose answer the test reads or not."""
        connection = self.raw_http()
        connection.sendall(post_request(path, value))
        return connection

    # gRPC

    def raw_grpc(self) -> Any:
        """A channel of grpcio, with no connection in common with others."""
        own = [("grpc.use_local_subchannel_pool", 1)]
        return grpc.insecure_channel(f"127.0.0.1:{self.ports['GRPCInferenceService']}", options=own)

    @contextmanager
    def channel(self) -> Iterator["Channel"]:
        with self.raw_grpc() as channel:
            yield Channel(channel)


def post_request(path: str, value: Any, headers: str = "") -> bytes:
    """The bytes of a POST of JSON, or of these bytes."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return head.encode("latin-1") + body


def binary_request(model: str, arrays: Mapping[str, npt.NDArray[Any]], headers: str = "") -> bytes:
    """The bytes of a request for inference with binary tensors."""
    head, tail = encode_infer_request([Tensor.from_numpy(name, array) for name, array in arrays.items()])
    size = f"Inference-Header-Content-Length: {len(head)}\r\n"
    return post_request(f"/v2/models/{model}/infer", head + b"".join(tail), size + headers)


def reset(connection: socket.socket) -> None:
    """Close so that the other end sees RST, at once."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


class Channel:
    """Calls by the name of the verb, with messages or with any bytes."""

    def __init__(self, channel: Any) -> None:
        self.raw = channel

    def send(self, verb: str, request: bytes, path: str = SERVICE) -> bytes:
        """Send these bytes as a message; raises grpc.RpcError."""
        call = self.raw.unary_unary(path + verb, lambda data: data, lambda data: data)
        answer: bytes = call(request, timeout=20)
        return answer

    def call(self, verb: str, **fields: Any) -> Any:
        """Send a <verb>Request with these fields; returns the <verb>Response."""
        request = getattr(messages, f"{verb}Request")(**fields)
        return getattr(messages, f"{verb}Response").FromString(self.send(verb, request.SerializeToString()))

    def infer(self, model: str, arrays: Mapping[str, npt.NDArray[Any]], **fields: Any) -> Any:
        """ModelInfer with raw tensors."""
        return messages.ModelInferResponse.FromString(
            self.send("ModelInfer", infer_message(model, arrays, **fields))
        )

    def outcome(self, verb: str, request: bytes) -> str:
        """The status that these bytes are answered with."""
        try:
            self.send(verb, request)
        except grpc.RpcError as exc:
            return str(exc.code().name)
        return "OK"

    def error(self, verb: str, request: bytes) -> tuple[str, str]:
        """The status and the message that a request is refused with."""
        try:
            self.send(verb, request)
        except grpc.RpcError as exc:
            return exc.code().name, exc.details()
        raise AssertionError("it was not refused")


def infer_message(model: str, arrays: Mapping[str, npt.NDArray[Any]], **fields: Any) -> bytes:
    """A serialized ModelInferRequest with raw tensors."""
    message = messages.ModelInferRequest(model_name=model, **fields)
    for name, array in arrays.items():
        tensor = Tensor.from_numpy(name, array)
        message.inputs.add(name=name, datatype=tensor.datatype, shape=tensor.shape)
        message.raw_input_contents.append(bytes(tensor.data))
    data: bytes = message.SerializeToString()
    return data


def outputs_of(response: Any) -> dict[str, Any]:
    """The raw outputs of a ModelInferResponse as lists, by name."""
    out = {}
    for item, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        out[item.name] = Tensor(item.name, item.datatype, tuple(item.shape), raw).numpy().tolist()
    return out


@contextmanager
def serving(repository: Path | Sequence[Path], **options: Any) -> Iterator[Live]:
    """A server on free ports over a model repository."""
    paths = (repository,) if isinstance(repository, Path) else tuple(repository)
    usual = {"http_port": 0, "grpc_port": 0, "metrics_port": 0, "exit_timeout_secs": 10}
    config = build(ServeConfig, {"model_repository": paths, **usual, **options})
    live = Live(config).start()
    try:
        yield live
    finally:
        live.stop()


def write_models(repository: Path) -> None:
    """The models that the frontends' tests ask for: one a shape of trouble."""
    write_model(repository, "double", onnx_files.doubling("batch", "n"), "dynamic_batching { }")
    write_model(repository, "flat", onnx_files.doubling("n"), "max_batch_size: 0 " + _io(-1))
    write_model(repository, "words", onnx_files.identity("BYTES", "batch", "n"), "max_batch_size: 8")
    write_model(repository, "versions", onnx_files.doubling("batch", 2), "version_policy { all { } }")
    write_model(repository, "versions", onnx_files.identity("FP32", "batch", 2), version="3")
    write_model(repository, "label", onnx_files.identity("FP32", "batch", 3), _LABELLED)
    (repository / "label" / "labels.txt").write_text("cat\ndog\n", encoding="utf-8")
    for datatype in ("BOOL", "FP16", "BF16", "INT64", "UINT64", "INT8", "FP64"):
        write_model(repository, datatype.lower(), onnx_files.identity(datatype, "batch", "n"))
    write_model(repository, "two", _two_inputs(), "max_batch_size: 8")
    write_model(repository, "tagged", onnx_files.doubling(), _TAGGED)
    write_model(repository, "with space ü", onnx_files.doubling())


def _io(dim: int) -> str:
    tensor = f"data_type: TYPE_FP32 dims: [ {dim} ]"
    return f"input [{{ name: 'x' {tensor} }}] output [{{ name: 'y' {tensor} }}]"


_LABELLED = (
    "max_batch_size: 8 output [{ name: 'y' data_type: TYPE_FP32 dims: [ 3 ] label_filename: 'labels.txt' }]"
)
_TAGGED = r"""
metric_tags { key: "team" value: "a \"b\" \\ c\nd" }
metric_tags { key: "odd-key" value: "1" }
"""


def _two_inputs() -> Any:
    names = ("a", "b")
    return graph(
        [node("Add", names, ["sum"]), node("Sub", names, ["difference"])],
        [value(name, "FP32", "batch", 2) for name in names],
        [value(name, "FP32", "batch", 2) for name in ("sum", "difference")],
    )


def floats(*rows: Sequence[float]) -> npt.NDArray[np.float32]:
    """An FP32 array."""
    return np.array(rows, dtype=np.float32)
