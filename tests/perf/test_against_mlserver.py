"""Runs against MLServer, which counts nothing, has no binary tensors and takes one request from a stream.

TPX_MLSERVER names its program, in an environment with numpy.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.perf.clients.running import level, ran
from tests.perf.conftest import PLAIN_SPEC
from tests.perf.peers import Ports, fetched, free_ports, running
from tpx.errors import MeasurementError
from tpx.perf.report.level_text import level_block
from tpx.perf.results import LevelResult, Verdict

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

VARIABLE = "TPX_MLSERVER"
RUNTIME = """
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse


class Doubling(MLModel):
    async def predict(self, payload):
        (given,) = payload.inputs
        doubled = NumpyCodec.encode_output("y", NumpyCodec.decode_input(given) * 2)
        return InferenceResponse(model_name=self.name, outputs=[doubled])


class Stuttering(Doubling):
    async def predict_stream(self, payloads):
        (payload,) = [each async for each in payloads]
        for _ in range(3):
            yield await self.predict(payload)
"""
TENSORS: dict[str, object] = {
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 4]}],
}
MODELS: dict[str, dict[str, object]] = {
    "double": {"implementation": "runtime.Doubling", **TENSORS},
    "silent": {"implementation": "runtime.Doubling"},
    "stutter": {"implementation": "runtime.Stuttering", **TENSORS},
}
PROTOCOLS = pytest.mark.parametrize("protocol", ["http", "grpc"])
DECLARED = ("--shape", "x:1,4")


@pytest.fixture(scope="module")
def mlserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    program = os.environ.get(VARIABLE)
    if not program:
        pytest.skip(f"{VARIABLE} does not name an mlserver")
    root: Path = tmp_path_factory.mktemp("mlserver")
    ports = free_ports()
    (root / "runtime.py").write_text(RUNTIME)
    for name, settings in MODELS.items():
        (root / name).mkdir()
        (root / name / "model-settings.json").write_text(json.dumps({"name": name} | settings))
    settings = {
        "debug": False,
        "parallel_workers": 0,
        "host": "127.0.0.1",
        "http_port": ports.http,
        "grpc_port": ports.grpc,
        "metrics_port": ports.metrics,
    }
    (root / "settings.json").write_text(json.dumps(settings))
    env = {"PYTHONPATH": str(root), "MLSERVER_PARALLEL_WORKERS": "0"}
    with running((program, "start", root), ports, list(MODELS), root / "server.log", env):
        yield ports


def infers(mlserver: Ports) -> int:
    """How many inference requests over HTTP the server has counted itself."""
    page = fetched(f"http://127.0.0.1:{mlserver.metrics}/metrics")
    counted = re.findall(r'^rest_server_requests_total\{.*/infer".*\} (\S+)', page, re.MULTILINE)
    return int(sum(map(float, counted)))


def check(result: LevelResult) -> None:
    assert result.errors == ()
    assert result.verdict in (Verdict.OK, Verdict.UNSTABLE)
    assert result.requests > 10
    assert result.server is None
    assert "Server:" not in level_block(result, PLAIN_SPEC)


@PROTOCOLS
def test_levels_of_a_closed_loop_are_measured(mlserver: Ports, protocol: str) -> None:
    report = ran(*mlserver.at(protocol), "-m", "double", "--concurrency-range", "1:4", *DECLARED)
    assert [r.level.value for r in report.levels] == [1, 2, 3, 4]
    for result in report.levels:
        check(result)
    assert report.server.name == "mlserver"


@PROTOCOLS
def test_a_rate_is_kept(mlserver: Ports, protocol: str) -> None:
    words = ("-m", "double", "--request-rate-range", "100", "-p", "250", *DECLARED)
    result = level(*mlserver.at(protocol), *words)
    check(result)
    assert result.throughput_infer_per_s == pytest.approx(100, rel=0.2)


def test_every_request_is_one_that_the_server_counts(mlserver: Ports) -> None:
    before = infers(mlserver)
    result = level(*mlserver.at("http"), "-m", "double", "--request-count", "300", *DECLARED)
    assert (result.requests, infers(mlserver) - before) == (300, 300)


@PROTOCOLS
@pytest.mark.parametrize("expected", [8.0, 9.0])
def test_answers_are_compared_with_the_data(
    mlserver: Ports, tmp_path: Path, protocol: str, expected: float
) -> None:
    def content(value: float) -> dict[str, object]:
        return {"content": [value] * 4, "shape": [1, 4]}

    data = {"data": [{"x": content(4.0)}], "validation_data": [{"y": content(expected)}]}
    (tmp_path / "data.json").write_text(json.dumps(data))
    words = ("-m", "double", "--input-data", str(tmp_path / "data.json"), "--request-count", "20")
    result = level(*mlserver.at(protocol), *words)
    assert (result.requests, result.failed) == ((20, 0) if expected == 8.0 else (0, 20))
    assert [e.code for e in result.errors] == ([] if expected == 8.0 else ["output mismatch"])


@pytest.mark.parametrize(("model", "responses"), [("double", 1), ("stutter", 3)])
@pytest.mark.parametrize("concurrency", [1, 20])
def test_every_request_has_a_stream_of_its_own(
    mlserver: Ports, model: str, responses: int, concurrency: int
) -> None:
    words = ("-m", model, "--streaming", "--concurrency-range", str(concurrency), "--request-count", "100")
    result = level(*mlserver.at("grpc"), *words, *DECLARED)
    assert result.streaming is not None
    assert (result.requests, result.failed, result.streaming.responses) == (100, 0, 100 * responses)


@PROTOCOLS
def test_several_models_are_loaded_at_once(mlserver: Ports, protocol: str) -> None:
    words = ("--models", "double:3,stutter:1", "--concurrency-range", "4", "--request-count", "200")
    result = level(*mlserver.at(protocol), *words, *DECLARED)
    assert (result.requests, result.failed) == (200, 0)
    assert [m.model for m in result.members] == ["double", "stutter"]
    assert sum(m.requests for m in result.members) == 200


@PROTOCOLS
def test_a_model_that_lists_no_inputs_is_told_them(mlserver: Ports, protocol: str) -> None:
    words = (*mlserver.at(protocol), "-m", "silent", "--request-count", "20")
    with pytest.raises(MeasurementError, match="--declare x:FP32:1,4"):
        ran(*words)
    check(level(*words, "--declare", "x:FP32:2,4"))


def test_its_metrics_are_looked_at_beside_the_load(mlserver: Ports) -> None:
    place = ("--collect-metrics", "--metrics-url", f"127.0.0.1:{mlserver.metrics}/metrics")
    series = ("--metric", "rest_server_requests_total.*/infer", "--metrics-interval", "50")
    result = level(*mlserver.at("http"), "-m", "double", "-p", "250", *place, *series, *DECLARED)
    assert result.metrics is not None
    assert result.metrics.memory_used_bytes is not None
    counted = next(s for s in result.metrics.series if 'status_code="200"' in s.name)
    assert counted.per_s == pytest.approx(result.throughput_infer_per_s, rel=0.5)


REFUSED = {
    "system_shared_memory: leave out --shared-memory": ("-m", "double", "--shared-memory", "system"),
    "trace: leave out --trace-level": ("-m", "double", "--trace-level", "TIMESTAMPS"),
    "it without versions": ("-m", "double", "-x", "3"),
    "did you mean 'stutter'": ("-m", "stuter"),
}


@PROTOCOLS
@pytest.mark.parametrize("told", REFUSED)
def test_what_it_has_not_is_said_with_what_helps(mlserver: Ports, protocol: str, told: str) -> None:
    with pytest.raises(MeasurementError) as refused:
        ran(*mlserver.at(protocol), *REFUSED[told])
    assert told in refused.value.message
