"""Small v2 servers of their own making, over HTTP and gRPC, that misbehave on demand."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from tests.perf.conversing import Request, conversing
from tpx.protocol import messages


@dataclass
class Behaviour:
    """What a server does with the requests it gets, numbered from 1."""

    delay_s: Callable[[int], float] = lambda _: 0.0005
    status: Callable[[int], int] = lambda _: 0
    """0 for success, or an error: an HTTP status, a gRPC status."""
    drops: Callable[[int], bool] = lambda _: False
    """Whether the connection is closed instead of an answer (HTTP)."""
    breaks: Callable[[int], bool] = lambda _: False
    """Whether the connection is closed within the answer (HTTP)."""
    closes: Callable[[int], bool] = lambda _: False
    """Whether the connection is closed behind the answer (HTTP)."""
    config: dict[str, Any] = field(default_factory=lambda: {"max_batch_size": 8})
    has_config: bool = True
    extensions: tuple[str, ...] = ("statistics", "binary_tensor_data")
    lists_inputs: bool = True
    infers: int = 0
    seen: list[tuple[Mapping[str, str], bytes]] = field(default_factory=list)
    """Headers (HTTP, lower case) and bodies of the first inference requests."""

    def infer(self, headers: Mapping[str, str], body: bytes) -> int:
        self.infers += 1
        if len(self.seen) < 10:
            self.seen.append((headers, body))
        return self.infers

    @property
    def statistics(self) -> dict[str, Any]:
        durations = {
            name: {"count": self.infers, "ns": self.infers * ns}
            for name, ns in {"success": 9000, "queue": 1000, "compute_infer": 5000}.items()
        }
        stats = {"name": "net", "version": "1", "inference_count": self.infers, "inference_stats": durations}
        return {"model_stats": [stats]}


METADATA = {
    "name": "net",
    "versions": ["1"],
    "platform": "test",
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 4]}],
}


class HttpServer:
    """Answers over HTTP/1.1."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour

    async def answer(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        if request.method == "GET":
            self._write(writer, *self._get(request.path))
            return True
        behaviour = self._behaviour
        number = behaviour.infer(request.headers, request.body)
        await asyncio.sleep(behaviour.delay_s(number))
        if behaviour.drops(number):
            return False
        if behaviour.breaks(number):
            writer.write(b"HTTP/1.1 200 X\r\nContent-Length: 100\r\n\r\n{")
            await writer.drain()
            return False
        closing = behaviour.closes(number)
        status = behaviour.status(number)
        answer: dict[str, Any] = {"error": f"failed on purpose with {status}"} if status else {"outputs": []}
        self._write(writer, status or 200, answer, closing=closing)
        await writer.drain()
        return not closing

    def _get(self, path: str) -> tuple[int, Any]:
        behaviour = self._behaviour
        answers: dict[str, Any] = {
            "/v2": {"name": "test", "version": "1", "extensions": list(behaviour.extensions)},
            "/v2/models/net": METADATA if behaviour.lists_inputs else METADATA | {"inputs": []},
            "/v2/models/net/stats": behaviour.statistics,
        }
        if behaviour.has_config:
            answers["/v2/models/net/config"] = behaviour.config
        if path in answers:
            return 200, answers[path]
        return 404, {"error": f"Request for unknown model: '{path.split('/')[-1]}' is not found"}

    def _write(
        self, writer: asyncio.StreamWriter, status: int, answer: Any, *, closing: bool = False
    ) -> None:
        body = json.dumps(answer).encode()
        close = b"Connection: close\r\n" if closing else b""
        writer.write(b"HTTP/1.1 %d X\r\n%sContent-Length: %d\r\n\r\n%s" % (status, close, len(body), body))


def http_server(behaviour: Behaviour) -> AbstractContextManager[str]:
    """A running HTTP server; yields host:port."""
    return conversing(HttpServer(behaviour).answer)


class GrpcServer(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers on grpcio's own server, so that two implementations of gRPC meet."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour

    def service(self, details: Any) -> Any:
        verb = details.method.rsplit("/", 1)[1]
        return grpc.unary_unary_rpc_method_handler(getattr(self, "_" + verb, None))

    def _ServerMetadata(self, request: bytes, context: Any) -> bytes:  # noqa: N802 (the verb's name)
        response = messages.ServerMetadataResponse(name="test", version="1")
        response.extensions.extend(self._behaviour.extensions)
        return bytes(response.SerializeToString())

    def _ModelMetadata(self, request: bytes, context: Any) -> bytes:  # noqa: N802
        name = messages.ModelMetadataRequest.FromString(request).name
        if name != "net":
            context.abort(grpc.StatusCode.NOT_FOUND, f"Request for unknown model: '{name}' is not found")
        response = messages.ModelMetadataResponse(name="net", versions=["1"], platform="test")
        response.inputs.add(name="x", datatype="FP32", shape=[-1, 4])
        return bytes(response.SerializeToString())

    def _ModelConfig(self, request: bytes, context: Any) -> bytes:  # noqa: N802
        if not self._behaviour.has_config:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such verb")
        response = messages.ModelConfigResponse()
        response.config.max_batch_size = self._behaviour.config.get("max_batch_size", 0)
        return bytes(response.SerializeToString())

    def _ModelStatistics(self, request: bytes, context: Any) -> bytes:  # noqa: N802
        response = messages.ModelStatisticsResponse()
        (stats,) = self._behaviour.statistics["model_stats"]
        entry = response.model_stats.add(name="net", version="1", inference_count=stats["inference_count"])
        for name, duration in stats["inference_stats"].items():
            getattr(entry.inference_stats, name).count = duration["count"]
            getattr(entry.inference_stats, name).ns = duration["ns"]
        return bytes(response.SerializeToString())

    def _ModelInfer(self, request: bytes, context: Any) -> bytes:  # noqa: N802
        number = self._behaviour.infer({k: str(v) for k, v in context.invocation_metadata()}, request)
        time.sleep(self._behaviour.delay_s(number))
        status = self._behaviour.status(number)
        if status:
            code = next(c for c in grpc.StatusCode if c.value[0] == status)
            context.abort(code, f"failed on purpose with {status}")
        return bytes(messages.ModelInferResponse(model_name="net").SerializeToString())


@contextmanager
def grpc_server(behaviour: Behaviour, port: int = 0) -> Iterator[str]:
    """A running gRPC server; yields host:port."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool)
        server.add_generic_rpc_handlers((GrpcServer(behaviour),))
        port = server.add_insecure_port(f"127.0.0.1:{port}")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait(5)
