"""A server with decoupled models, and the two ways to stream from it."""

import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from tests.serving.live import SERVICE, Live, infer_message, write_models
from tests.serving.onnx_files import busy, write_model
from tpx.protocol import messages

REPEAT = 'backend: "repeat" model_transaction_policy { decoupled: true }'
STREAM = SERVICE + "ModelStreamInfer"
EMPTY_FINAL = "triton_enable_empty_final_response"


def write_streaming_models(repository: Path) -> None:
    """`write_models`, decoupled ones, and two that take their time."""
    write_models(repository)
    for name, count in (("repeat", 2), ("lone", 1)):
        directory = repository / name
        (directory / "1").mkdir(parents=True)
        (directory / "config.pbtxt").write_text(f"{REPEAT} instance_group [{{ count: {count} }}]")
    write_model(repository, "once", config="model_transaction_policy { decoupled: true }")
    patient = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 400000 }"
    write_model(repository, "patient", config=patient)
    write_model(repository, "busy", busy(), "max_batch_size: 8 instance_group [{ count: 1 }]")


def repeat(values: Sequence[int], delay: int = 0, wait: int = 0) -> dict[str, npt.NDArray[Any]]:
    """The inputs of the repeat backend: its values, the same delay in ms before each, a wait at the end."""
    return {
        "IN": np.array(values, np.int32),
        "DELAY": np.full(len(values), delay, np.uint32),
        "WAIT": np.array([wait], np.uint32),
    }


def repeat_body(values: Sequence[int], delay: int = 0, **fields: Any) -> bytes:
    """The same as the JSON of generate."""
    inputs = {name: array.tolist() for name, array in repeat(values, delay).items()}
    return json.dumps({**inputs, **fields}).encode()


def request(model: str, arrays: Mapping[str, npt.NDArray[Any]], request_id: str = "", **flags: Any) -> bytes:
    """A serialized ModelInferRequest; flags are parameters."""
    parameters = {name: messages.InferParameter(**{_kind(value): value}) for name, value in flags.items()}
    return infer_message(model, arrays, id=request_id, parameters=parameters)


def _kind(value: object) -> str:
    kinds: dict[type, str] = {bool: "bool_param", int: "int64_param", str: "string_param"}
    return kinds[type(value)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One message of a stream."""

    error: str
    request_id: str
    outputs: dict[str, list[Any]]
    final: bool | None
    model: str

    @classmethod
    def of(cls, data: bytes) -> "Response":
        message = messages.ModelStreamInferResponse.FromString(data)
        inner = message.infer_response
        outputs = {
            item.name: np.frombuffer(
                raw, {"INT32": "i4", "UINT32": "u4", "FP32": "f4"}[item.datatype]
            ).tolist()
            for item, raw in zip(inner.outputs, inner.raw_output_contents, strict=True)
        }
        final = inner.parameters.get("triton_final_response")
        return cls(
            error=message.error_message,
            request_id=inner.id,
            outputs=outputs,
            final=None if final is None else final.bool_param,
            model=inner.model_name,
        )


class Stream:
    """One ModelStreamInfer call whose requests a test sends when it likes."""

    def __init__(self, channel: Any, **options: Any) -> None:
        self._requests: SimpleQueue[bytes | None] = SimpleQueue()
        call = channel.stream_stream(STREAM, None, None)
        self.call = call(iter(self._requests.get, None), **{"timeout": 30, **options})

    def send(self, *requests: bytes) -> None:
        for data in requests:
            self._requests.put(data)

    def half_close(self) -> None:
        self._requests.put(None)

    def next(self) -> Response:
        return Response.of(next(self.call))

    def rest(self) -> list[Response]:
        """Everything until the call ends well."""
        self.half_close()
        return [Response.of(data) for data in self.call]

    def failure(self) -> tuple[list[Response], str, str]:
        """What still came before the call failed, its status and its message."""
        got: list[Response] = []
        try:
            for data in self.call:
                got.append(Response.of(data))  # noqa: PERF401 (they came before it failed)
        except grpc.RpcError as exc:
            self.half_close()
            return got, exc.code().name, exc.details()
        raise AssertionError("the call ended well")


@contextmanager
def stream(live: Live, **options: Any) -> Iterator[Stream]:
    """A stream on a channel of its own."""
    with live.raw_grpc() as channel:
        opened = Stream(channel, **options)
        try:
            yield opened
        finally:
            opened.half_close()
            opened.call.cancel()


class Events:
    """A generate_stream call over a socket of its own, read by hand."""

    def __init__(
        self, live: Live, model: str, body: bytes, head: str = "", *, version: str = "1.1", receive: int = 0
    ) -> None:
        self.socket = socket.socket()
        self.socket.settimeout(10)
        if receive:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        self.socket.connect(("127.0.0.1", live.http_port))
        lines = f"POST /v2/models/{model}/generate_stream HTTP/{version}\r\nHost: localhost\r\n{head}"
        self.socket.sendall(f"{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        self._data = bytearray()

    def __enter__(self) -> "Events":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def until(self, mark: bytes) -> bytes:
        """Everything up to and with a mark."""
        at = self._data.find(mark)
        while at < 0:
            seen = max(0, len(self._data) - len(mark))
            more = self.socket.recv(1 << 16)
            if not more:
                raise EOFError(bytes(self._data))
            self._data += more
            at = self._data.find(mark, seen)
        out = bytes(self._data[: at + len(mark)])
        del self._data[: at + len(mark)]
        return out

    def head(self) -> str:
        return self.until(b"\r\n\r\n").decode()

    def rest(self) -> bytes:
        """Everything until the server closes."""
        parts = [bytes(self._data)]
        while part := self.socket.recv(1 << 16):
            parts.append(part)
        return b"".join(parts)


def counters(live: Live, model: str) -> dict[str, int]:
    """What became of a model's requests."""
    [served] = [served for served in live.server.plane.served() if served.name == model]
    statistics = served.statistics
    return {
        "success": statistics.durations()["success"].count,
        "responses": sum(kept.success.count for kept in list(statistics.responses.values())),
        "in_flight": served.in_flight,
        **statistics.failures,
    }
