"""Runs against a real Triton: what it counts, shares, streams and remembers is what the report says.

TPX_TRITONSERVER names its program; `make differential` fetches one.
"""

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.perf.clients.running import level, ran
from tests.perf.peers import Ports, free_ports, running
from tpx.errors import MeasurementError
from tpx.perf.results import LevelResult, ServerBreakdown, Verdict

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

VARIABLE = "TPX_TRITONSERVER"
DOUBLING = """
import triton_python_backend_utils as triton


class TritonPythonModel:
    def execute(self, requests):
        arrays = [triton.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [triton.InferenceResponse([triton.Tensor("y", array * 2)]) for array in arrays]
"""
STUTTERING = """
import triton_python_backend_utils as triton


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            array = triton.get_input_tensor_by_name(request, "x").as_numpy()
            for _ in range(3):
                sender.send(triton.InferenceResponse([triton.Tensor("y", array * 2)]))
            sender.send(flags=triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
SUMMING = """
import triton_python_backend_utils as triton


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        x, start, sequence = (
            triton.get_input_tensor_by_name(request, name).as_numpy() for name in ("x", "START", "CORRID")
        )
        key = int(sequence.flat[0])
        self.sums[key] = x + (0 if start.flat[0] else self.sums[key])
        return triton.InferenceResponse([triton.Tensor("y", self.sums[key])])
"""
TENSORS = """
backend: "python"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: 4 }
output { name: "y" data_type: TYPE_FP32 dims: 4 }
instance_group { count: 1 kind: KIND_CPU }
"""
SEQUENCES = """
sequence_batching {
  oldest { max_candidate_sequences: 8 }
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
  control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
}
"""
CHAIN = """
platform: "ensemble"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: 4 }
output { name: "y" data_type: TYPE_FP32 dims: 4 }
ensemble_scheduling {
  step { model_name: "double" model_version: -1
    input_map { key: "x" value: "x" } output_map { key: "y" value: "between" } }
  step { model_name: "again" model_version: -1
    input_map { key: "x" value: "between" } output_map { key: "y" value: "y" } }
}
"""
MODELS = {
    "double": (TENSORS + "dynamic_batching { }", DOUBLING),
    "again": (TENSORS, DOUBLING),
    "stutter": (TENSORS + "model_transaction_policy { decoupled: true }", STUTTERING),
    "sum": (TENSORS + SEQUENCES, SUMMING),
    "chain": (CHAIN, ""),
}
PROTOCOLS = pytest.mark.parametrize("protocol", ["http", "grpc"])


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    program = os.environ.get(VARIABLE)
    if not program:
        pytest.skip(f"{VARIABLE} does not name a tritonserver; `make differential` fetches one")
    root: Path = tmp_path_factory.mktemp("triton")
    for name, (config, code) in MODELS.items():
        (root / "models" / name / "1").mkdir(parents=True)
        (root / "models" / name / "config.pbtxt").write_text(config)
        if code:
            (root / "models" / name / "1" / "model.py").write_text(code)
    ports = free_ports()
    words = (
        *(program, f"--model-repository={root / 'models'}", f"--http-port={ports.http}"),
        *(f"--grpc-port={ports.grpc}", f"--metrics-port={ports.metrics}"),
        *("--http-address=127.0.0.1", "--grpc-address=127.0.0.1"),
        # two servers with one prefix end each other's model processes
        f"--backend-config=python,shm-region-prefix-name=perf_{uuid.uuid4().hex[:8]}_",
    )
    with running(words, ports, list(MODELS), root / "server.log", {}):
        yield ports


def counted(sent: int, in_flight: int) -> range:
    """What Triton may say: it counts a request a moment after it has answered it."""
    return range(sent - in_flight, sent + 1)


def served(result: LevelResult) -> ServerBreakdown:
    assert result.server is not None
    return result.server


@PROTOCOLS
def test_levels_of_a_closed_loop_have_the_servers_part(triton: Ports, protocol: str) -> None:
    report = ran(*triton.at(protocol), "-m", "double", "--concurrency-range", "1:4")
    assert report.server.name == "triton"
    assert [r.level.value for r in report.levels] == [1, 2, 3, 4]
    for result in report.levels:
        assert result.errors == ()
        assert result.verdict in (Verdict.OK, Verdict.UNSTABLE)
        assert result.requests > 10
        assert served(result).compute_infer_ns > 0


@PROTOCOLS
@pytest.mark.parametrize("batch", [1, 4])
def test_every_request_is_one_that_the_server_counts(triton: Ports, protocol: str, batch: int) -> None:
    words = ("-m", "double", "-b", str(batch), "--request-count", "200", "--concurrency-range", "2")
    result = level(*triton.at(protocol), *words)
    server = served(result)
    assert result.requests == 200
    assert server.success_count in counted(200, 2)
    assert server.inference_count == server.success_count * batch
    assert server.mean_batch >= batch


@PROTOCOLS
def test_a_rate_is_kept(triton: Ports, protocol: str) -> None:
    result = level(*triton.at(protocol), "-m", "double", "--request-rate-range", "100", "-p", "250")
    assert result.errors == ()
    assert result.throughput_infer_per_s == pytest.approx(100, rel=0.2)


TRANSPORTS = {
    "http": ("http",),
    "http, JSON": ("http", "--input-tensor-format", "json", "--output-tensor-format", "json"),
    "grpc": ("grpc",),
    "grpc, compressed": ("grpc", "--grpc-compression-algorithm", "gzip"),
    "streams": ("grpc", "--streaming"),
    "a stream for each": ("grpc", "--streaming", "--stream-per-request"),
}


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("expected", [8.0, 9.0])
def test_answers_are_compared_with_the_data(
    triton: Ports, tmp_path: Path, transport: str, expected: float
) -> None:
    data = {"data": [{"x": [4.0] * 4}], "validation_data": [{"y": [expected] * 4}]}
    (tmp_path / "data.json").write_text(json.dumps(data))
    protocol, *more = TRANSPORTS[transport]
    words = ("-m", "double", "--input-data", str(tmp_path / "data.json"), "--request-count", "20", *more)
    result = level(*triton.at(protocol), *words)
    assert (result.requests, result.failed) == ((20, 0) if expected == 8.0 else (0, 20))


@PROTOCOLS
def test_tensors_may_lie_in_shared_memory(triton: Ports, protocol: str) -> None:
    words = ("-m", "double", "--shared-memory", "system", "--request-count", "100")
    result = level(*triton.at(protocol), *words)
    assert (result.requests, result.failed) == (100, 0)


@pytest.mark.parametrize("more", [(), ("--stream-per-request",)], ids=" ".join)
@pytest.mark.parametrize("concurrency", [1, 20])
def test_every_response_of_a_decoupled_model_is_counted(
    triton: Ports, more: tuple[str, ...], concurrency: int
) -> None:
    words = ("-m", "stutter", "--streaming", "--concurrency-range", str(concurrency), *more)
    result = level(*triton.at("grpc"), *words, "--request-count", "100")
    assert result.streaming is not None
    assert (result.requests, result.failed, result.streaming.responses) == (100, 0, 300)


@pytest.mark.parametrize("transport", ["http", "grpc", "streams"])
def test_sequences_are_answered_in_order(triton: Ports, tmp_path: Path, transport: str) -> None:
    streams = [[1.0, 2.0, 3.0], [10.0, 20.0]]
    data = {
        "data": [[{"x": [value] * 4} for value in stream] for stream in streams],
        "validation_data": [
            [{"y": [sum(stream[: i + 1])] * 4} for i in range(len(stream))] for stream in streams
        ],
    }
    (tmp_path / "data.json").write_text(json.dumps(data))
    protocol, *more = TRANSPORTS[transport]
    words = ("-m", "sum", "--input-data", str(tmp_path / "data.json"), "--concurrency-range", "4", *more)
    result = level(*triton.at(protocol), *words)
    assert result.errors == ()
    assert result.sequences


@PROTOCOLS
def test_the_models_of_an_ensemble_have_their_part(triton: Ports, protocol: str) -> None:
    result = level(*triton.at(protocol), "-m", "chain", "--request-count", "50")
    parts = served(result).composing
    assert sorted(part.model for part in parts) == ["again", "double"]
    assert all(part.success_count in counted(50, 1) for part in parts)


@PROTOCOLS
def test_several_models_are_loaded_at_once(triton: Ports, protocol: str) -> None:
    words = ("--models", "double:3,again:1", "--concurrency-range", "4", "--request-count", "200")
    result = level(*triton.at(protocol), *words)
    assert (result.requests, result.failed) == (200, 0)
    for member in result.members:
        assert member.server is not None
        assert member.server.success_count in counted(member.requests, 4)


def test_its_metrics_are_looked_at_beside_the_load(triton: Ports) -> None:
    place = ("--collect-metrics", "--metrics-url", f"127.0.0.1:{triton.metrics}/metrics")
    series = ("--metric", 'nv_inference_request_success.*"double"', "--metrics-interval", "50")
    words = ("-m", "double", "-b", "2", "-p", "250", *place, *series)
    result = level(*triton.at("http"), *words)
    assert result.metrics is not None
    (counted,) = result.metrics.series
    assert counted.per_s is not None
    assert counted.per_s * 2 == pytest.approx(result.throughput_infer_per_s, rel=0.5)
    assert result.metrics.mean_batch == pytest.approx(2)


@PROTOCOLS
def test_a_mistyped_name_is_answered_with_the_right_one(triton: Ports, protocol: str) -> None:
    with pytest.raises(MeasurementError, match="did you mean 'double'"):
        ran(*triton.at(protocol), "-m", "doubel")
