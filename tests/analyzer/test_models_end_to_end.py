"""Runs over models made of others, that answer several times, that take sequences, and over rates."""

from pathlib import Path

import pytest

from tests.e2e.child import tpx
from tests.perf.clients.openai_server import Script, openai_server
from tests.serving.onnx_files import doubling, write_model
from tpx import examples
from tpx.analyzer.metrics import metric
from tpx.analyzer.results.journal import read_last_run
from tpx.analyzer.results.run import ModelRun, Run

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(180)]

CALLS = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        return [self.one(pb_utils.Tensor("x", r.inputs()[0].as_numpy())) for r in requests]
    def one(self, x):
        asked = pb_utils.InferenceRequest(model_name="a", requested_output_names=["y"], inputs=[x])
        y = pb_utils.get_output_tensor_by_name(asked.exec(), "y").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", y)])
"""
REPEATS = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for _ in range(3):
                tensor = pb_utils.Tensor("y", request.inputs()[0].as_numpy())
                sender.send(pb_utils.InferenceResponse([tensor]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
TENSORS = """
input { name: "x" data_type: TYPE_FP32 dims: 2 }
output { name: "y" data_type: TYPE_FP32 dims: 2 }
"""
PYTHON = 'backend: "python"\n' + TENSORS + "instance_group { count: 1 kind: KIND_CPU }\n"


def step(model: str, takes: str, gives: str) -> str:
    inputs = f'input_map {{ key: "x" value: "{takes}" }}'
    outputs = f'output_map {{ key: "y" value: "{gives}" }}'
    return f'step {{ model_name: "{model}" model_version: -1 {inputs} {outputs} }}'


ENSEMBLE = (
    'platform: "ensemble"\nmax_batch_size: 4\n'
    + TENSORS
    + f"ensemble_scheduling {{ {step('a', 'x', 'm')} {step('b', 'm', 'y')} }}\n"
)
QUICK = (
    *("--measurement-interval=40", "--max-trials=3", "--duration-seconds=0", "--final-rounds=0"),
    "--triton-launch-mode=c_api",  # what is measured is the same; a server takes a second to start
    *("--run-config-search-max-instance-count=2", "--run-config-search-max-model-batch-size=1"),
)
HILL = ("--run-config-search-mode=quick", "--run-config-search-max-concurrency=2")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for name in ("a", "b"):
        write_model(root, name, doubling("batch", 2), "max_batch_size: 4")
    for name, code, config in (
        ("calls", CALLS, "max_batch_size: 4\n" + PYTHON),
        ("repeats", REPEATS, PYTHON + "model_transaction_policy { decoupled: true }\n"),
        ("both", "", ENSEMBLE),
    ):
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(config)
        if code:
            (root / name / "1" / "model.py").write_text(code)
    examples.write(root, ["accumulator"])
    return root


def profile(models: Path, directory: Path, *words: str) -> ModelRun:
    done = tpx("analyze", "profile", "-m", str(models), *QUICK, *words, cwd=directory)
    assert done.returncode == 0, done.stderr
    (model,) = Run.from_records(read_last_run(directory / "results" / "run.jsonl")).models
    assert not model.failures, [failure.reason for failure in model.failures]
    return model


def test_an_ensemble_is_measured_over_the_variants_of_its_steps(models: Path, tmp_path: Path) -> None:
    model = profile(models, tmp_path, "--profile-models=both", *HILL)
    varied = [v.variant.members for v in model.measured if not v.variant.is_default]
    assert {member.model for members in varied for member in members} == {"a", "b"}
    assert any(member.delta for members in varied for member in members)
    written = {path.name for path in (tmp_path / "configurations").iterdir()}
    assert {"both_config_default", "a_config_default", "b_config_default"} < written


def test_business_logic_is_measured_with_the_variants_of_what_it_calls(models: Path, tmp_path: Path) -> None:
    model = profile(models, tmp_path, "--profile-models=calls", "--bls-composing-models=a", *HILL)
    assert len(model.measured) >= 3
    assert {m.model for v in model.measured for m in v.variant.members} == {"a"}
    assert any(v.variant.delta for v in model.measured)
    assert any(m.delta for v in model.measured for m in v.variant.members)


def test_models_together_have_a_load_each_and_add_up(models: Path, tmp_path: Path) -> None:
    words = ("--profile-models=a,b", "--run-config-profile-models-concurrently-enable", *HILL)
    model = profile(models, tmp_path, *words)
    for measurement in (m for v in model.measured for m in v.measurements):
        first, second = measurement.members
        assert measurement.throughput == pytest.approx(first.throughput + second.throughput)
        assert min(first.throughput, second.throughput) > 10


def test_a_model_with_several_answers_is_timed_answer_by_answer(models: Path, tmp_path: Path) -> None:
    words = ("--profile-models=repeats", "-c=1", "--run-config-search-disable")
    model = profile(models, tmp_path, *words)
    (measurement,) = model.measured[0].measurements
    answers = measurement.result.streaming
    assert answers is not None
    assert answers.times("icl") is not None
    assert answers.responses_per_s == pytest.approx(3 * measurement.throughput, rel=0.1)
    first, last_ns = answers.times("ttft"), measurement.mean_ns
    assert first is not None
    assert last_ns is not None
    assert first.mean_ns < last_ns


def test_sequences_and_rates_are_loads_too(models: Path, tmp_path: Path) -> None:
    words = ("--profile-models=accumulator", "--request-rate=50", "--run-config-search-disable")
    model = profile(models, tmp_path, *words, "--measurement-interval=300")
    (measurement,) = model.measured[0].measurements
    assert (measurement.load.kind, measurement.load.value) == ("request_rate", 50)
    assert measurement.throughput == pytest.approx(50, rel=0.3)


def test_a_language_model_is_timed_token_by_token(models: Path, tmp_path: Path) -> None:
    """The variants are those of a model of the server; its OpenAI API is a script's."""
    with openai_server(Script(tokens=4, first_s=0.01, gap_s=0.002)) as url:
        words = ("--model-type=LLM", "--genai-perf-flags", f"{{url: '{url}'}}", "-c=2")
        once = ("--profile-models=a", "--run-config-search-disable", "--triton-launch-mode=local")
        model = profile(models, tmp_path, *once, *words)
    (measurement,) = model.measured[0].measurements
    first = metric("time_to_first_token_min").value(measurement)
    between = metric("inter_token_latency_avg").value(measurement)
    tokens = metric("output_token_throughput").value(measurement)
    assert first is not None
    assert first >= 10
    assert between is not None
    assert between >= 1
    assert tokens is not None
    assert tokens > 4 * measurement.throughput
