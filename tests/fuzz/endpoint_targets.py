"""What a running server answers, whatever comes to a path or a method: an error is always the client's."""

import http.client
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np

from tests.fuzz.base import Target
from tests.fuzz.message_targets import FLAT, JSON_CONFIGS, JSON_REQUESTS
from tests.hostile.siege import SERVICE, write_good_models
from tests.serving.live import Live, infer_message, serving
from tpx.protocol import messages

PATHS = (
    "/v2/models/double/infer",
    "/v2/models/words/infer",
    "/v2/models/cube/infer",
    "/v2/models/double/generate",
    "/v2/models/double/generate_stream",
    "/v2/models/words/generate",
    "/v2/repository/index",
    "/v2/repository/models/double/load",
    "/v2/repository/models/nobody/unload",
    "/v2/logging",
    "/v2/trace/setting",
    "/v2/models/double/trace/setting",
    "/v2/systemsharedmemory/region/r/register",
    "/v2/cudasharedmemory/region/r/register",
)
VERBS = (
    "ModelInfer",
    "ModelConfig",
    "ModelStatistics",
    "ModelReady",
    "RepositoryIndex",
    "RepositoryModelLoad",
    "RepositoryModelUnload",
    "SystemSharedMemoryRegister",
    "SystemSharedMemoryStatus",
    "CudaSharedMemoryRegister",
    "TraceSetting",
    "LogSettings",
)
FAULTS = (
    "OK",
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "UNAVAILABLE",
    "UNIMPLEMENTED",
    "ALREADY_EXISTS",
    "RESOURCE_EXHAUSTED",
)
BODIES = (
    *JSON_REQUESTS[:6],
    *FLAT[:2],
    b'{"ready": true}',
    json.dumps(
        {"parameters": {"config": JSON_CONFIGS[0].decode(), "file:1/model.onnx": "aGVsbG8="}}
    ).encode(),
    b'{"parameters": {"unload_dependents": true}}',
    b'{"log_verbose_level": 1, "log_info": true, "log_format": "default"}',
    b'{"trace_level": ["TIMESTAMPS", "TENSORS"], "trace_rate": "1", "trace_count": "-1"}',
    b'{"log_frequency": "0", "trace_mode": "triton"}',
    b'{"trace_level": null, "trace_rate": null}',
    b'{"key": "/nobody", "offset": 0, "byte_size": 64}',
    b'{"raw_handle": {"b64": "AAAA"}, "device_id": 0, "byte_size": 64}',
)
HTTP_SEEDS = tuple(bytes((at % len(PATHS),)) + body for at, body in enumerate(BODIES * 3))


def _grpc_seeds() -> Iterator[bytes]:
    values = np.array([[1, 2]], dtype=np.float32)
    yield b"\x00" + infer_message("double", {"x": values})
    trace = messages.TraceSettingRequest(model_name="double")
    trace.settings["trace_rate"].value.append("5")
    log = messages.LogSettingsRequest()
    log.settings["log_verbose_level"].uint32_param = 0
    load = messages.RepositoryModelLoadRequest(model_name="double")
    load.parameters["config"].string_param = JSON_CONFIGS[0].decode()
    region = messages.SystemSharedMemoryRegisterRequest(name="r", key="/nobody", byte_size=64)
    named = messages.ModelConfigRequest(name="double", version="1")
    for verb, message in ((10, trace), (11, log), (5, load), (7, region), (1, named), (2, named), (3, named)):
        yield bytes((verb,)) + message.SerializeToString()


class Endpoints:
    """Sends what a target says to a running server, and judges the answer."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._channel = grpc.insecure_channel(f"127.0.0.1:{live.ports['GRPCInferenceService']}")
        self._methods = [self._channel.unary_unary(SERVICE + verb, bytes, bytes) for verb in VERBS]
        self.targets = (
            Target(name="http", seeds=HTTP_SEEDS, run=self.run_http, examples=150),
            Target(name="grpc", seeds=tuple(_grpc_seeds()), run=self.run_grpc, examples=200),
        )

    def close(self) -> None:
        self._channel.close()

    def run_http(self, data: bytes) -> None:
        """The first byte chooses the path, the rest is the body."""
        path = PATHS[data[0] % len(PATHS)] if data else PATHS[0]
        try:
            answer = self._live.http("POST", path, data[1:])
        except http.client.HTTPException as exc:
            raise AssertionError("no answer") from exc
        assert answer.status in (200, 400, 404, 501, 503), answer
        if answer.status != 200 and not path.endswith("generate_stream"):
            assert json.loads(answer.body)["error"]

    def run_grpc(self, data: bytes) -> None:
        """The first byte chooses the method, the rest is the message."""
        method = self._methods[data[0] % len(VERBS)] if data else self._methods[0]
        call = method.future(data[1:], timeout=10)
        assert call.code().name in FAULTS, call.details()


@contextmanager
def endpoints() -> Iterator[Endpoints]:
    """A server whose models clients may load and unload, and what is sent to it."""
    with tempfile.TemporaryDirectory() as folder:
        write_good_models(Path(folder))
        words = {"model_control_mode": "explicit", "load_model": ("*",), "trace_config": ()}
        with serving(Path(folder), **words) as live:
            found = Endpoints(live)
            try:
                yield found
                assert live.get("/v2/health/live").status == 200
            finally:
                found.close()


NAMES = ("http", "grpc")
