"""The accuracy gate: a variant that computes something else than the default is not measured."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.analyzer.measuring import make_measurement
from tests.perf.clients.openai_server import Script, openai_server
from tests.perf.servers import Behaviour, http_server
from tpx import examples
from tpx.analyzer.results.measurement import (
    Configuration,
    LoadPoint,
    Measurement,
    Outcome,
    Trial,
    TrialFailure,
    Variant,
)
from tpx.analyzer.runners.load import LoadGenerator
from tpx.analyzer.runners.outputs import ANSWER, Outputs, describe_answers, difference
from tpx.analyzer.runners.servers import Preparation
from tpx.analyzer.trial import TrialRunner, may_answer_otherwise
from tpx.analyzer.variants import OutputRepository, configure
from tpx.api.serving import RunningServer, serve
from tpx.argv import from_argv
from tpx.errors import MeasurementError
from tpx.perf.options import SessionSpec

CONFIG: dict[str, Any] = {"name": "m", "max_batch_size": 4}


class Runner:
    """A runner whose models return one figure, off by a factor by the variant's name; 0 fails."""

    server = None

    def __init__(self, factors: dict[str, float]) -> None:
        self._factors = factors
        self.asked = 0
        self.measured: list[str] = []
        self._name = ""

    async def default_config(self, model: str) -> dict[str, Any]:
        self._name = ""
        return CONFIG

    async def prepare(self, configuration: Configuration | None, directory: Path) -> None:
        self._name = configuration.variant.name if configuration else ""

    async def measure(self, load: LoadPoint, *, windows: int = 0) -> Measurement:
        self.measured.append(self._name)
        return make_measurement(variant=self._name, load=load, throughput=1.0)

    async def outputs(self, model: str) -> Outputs:
        self.asked += 1
        factor = self._factors.get(self._name, 1.0)
        if not factor:
            raise MeasurementError("no memory")
        return [{"y": np.array([2.0 * factor])}]

    async def close(self) -> None:
        return


def outcome_of(runner: Runner, tmp_path: Path, *deltas: dict[str, Any]) -> list[Outcome]:
    trials = TrialRunner(
        runner, OutputRepository(tmp_path / "out", None, override=True), monitoring_interval_s=1
    )

    async def run() -> list[Outcome]:
        found = []
        for number, delta in enumerate(deltas):
            variant = Variant(models=("m",), name=f"m_config_{number}", delta=delta)
            trial = Trial(variant=variant, load=LoadPoint(value=1))
            found.append(await trials.run(configure(variant, CONFIG), trial))
        return found

    return asyncio.run(run())


LEVEL: dict[str, Any] = {"optimization": {"graph": {"level": 1}}}


def test_a_variant_that_differs_fails_with_its_reason_and_is_not_measured(tmp_path: Path) -> None:
    runner = Runner({"m_config_0": 1.05})
    (outcome,) = outcome_of(runner, tmp_path, LEVEL)
    assert isinstance(outcome, TrialFailure)
    assert outcome.reason == (
        "output 'y' differs from the default's by 5.00% of its greatest value (allowed: 1.00%): it does not "
        "return the same results as the default"
    )
    assert runner.measured == []


def test_a_variant_that_is_near_enough_is_measured(tmp_path: Path) -> None:
    (outcome,) = outcome_of(Runner({"m_config_0": 1.005}), tmp_path, LEVEL)
    assert isinstance(outcome, Measurement)


def test_a_verdict_on_a_variant_is_kept(tmp_path: Path) -> None:
    runner = Runner({"m_config_0": 1.5})
    trials = TrialRunner(runner, OutputRepository(tmp_path / "out", None), monitoring_interval_s=1)
    variant = Variant(models=("m",), name="m_config_0", delta=LEVEL)

    async def run() -> tuple[int, int]:
        configuration = configure(variant, CONFIG)
        await trials.run(configuration, Trial(variant=variant, load=LoadPoint(value=1)))
        asked = runner.asked
        await trials.run(configuration, Trial(variant=variant, load=LoadPoint(value=2)))
        return asked, runner.asked

    first, second = asyncio.run(run())
    assert first == second


def test_variants_of_instances_and_batches_are_not_asked(tmp_path: Path) -> None:
    runner = Runner({})
    outcome_of(runner, tmp_path, {"instance_group": [{"count": 2, "kind": "KIND_CPU"}]})
    assert runner.asked == 0
    assert not may_answer_otherwise(Variant(models=("m",), name="m", delta={"max_batch_size": 2}))


def test_a_server_that_does_not_answer_is_a_failure_with_its_words(tmp_path: Path) -> None:
    (outcome,) = outcome_of(Runner({"m_config_0": 0.0}), tmp_path, LEVEL)
    assert isinstance(outcome, TrialFailure)
    assert outcome.reason == "no memory"


@pytest.mark.parametrize("behaviour", [Behaviour(status=lambda _: 500), Behaviour(drops=lambda _: True)])
def test_a_request_that_fails_is_a_measurement_error(behaviour: Behaviour) -> None:
    spec, message = (
        from_argv(SessionSpec, ["-m", "net"]),
        r"^the responses of 'net' could not be compared: .+",
    )
    with http_server(behaviour) as url, pytest.raises(MeasurementError, match=message):
        asyncio.run(LoadGenerator(sessions={"net": spec}, most_windows=1).outputs("net", url))


class Talker(Runner):
    """A runner of a language model that answers anything; of quantized variants, every other time."""

    async def prepare(self, configuration: Configuration | None, directory: Path) -> Preparation | None:  # type: ignore[override]
        await super().prepare(configuration, directory)
        return Preparation(how="loaded")

    async def outputs(self, model: str) -> Outputs:
        self.asked += 1
        texts = ["a", "b", "c", "d"] if not self._name else ["a", "x", "c", "y"]
        return [{ANSWER: np.array([text], np.object_)} for text in texts]


@pytest.mark.parametrize(
    "delta",
    [
        {"parameters": {"kv_cache_type": {"string_value": "q8_0"}}},
        {"default_model_filename": "model-q4.gguf"},
    ],
)
def test_a_language_model_may_answer_otherwise_which_is_told(tmp_path: Path, delta: dict[str, Any]) -> None:
    variant = Variant(models=("m",), name="m_config_0", delta=delta)
    trials = TrialRunner(Talker({}), OutputRepository(tmp_path / "out", None), monitoring_interval_s=1)
    trial = Trial(variant=variant, load=LoadPoint(value=1))
    assert isinstance(asyncio.run(trials.run(configure(variant, CONFIG), trial)), Measurement)
    assert trials.prepared is not None
    assert trials.prepared.answers == "2 of 4 greedy answers are the default's"


def test_greedy_answers_are_asked_of_the_loads_prompts() -> None:
    script = Script(first_s=0, per_word=1, replies=True)
    words = "-m llm --service-kind openai --endpoint v1/chat/completions --streaming --input-tokens 20"
    spec = from_argv(SessionSpec, [*words.split(), "--word-tokens", "1", "--prompts", "3"])
    with openai_server(script) as url:
        found = asyncio.run(LoadGenerator(sessions={"llm": spec}, most_windows=1).outputs("llm", url))
    asked = [body["messages"][0]["content"] for body in script.bodies]
    assert [str(each[ANSWER][0]) for each in found] == [f"to {text}: all" for text in asked]
    assert len(set(asked)) == 3
    assert {(b["temperature"], b["max_tokens"], b["stream"]) for b in script.bodies} == {(0, 32, False)}
    assert describe_answers(found, found) == "8 of 8 greedy answers are the default's"


@pytest.mark.e2e
def test_answers_are_those_of_the_load_over_either_protocol(tmp_path: Path) -> None:
    examples.write(tmp_path, ["add_sub"])

    def outputs(server: RunningServer, protocol: str, model: str = "add_sub") -> Outputs:
        spec = from_argv(SessionSpec, ["-m", model, "-i", protocol, "--input-data", "zero"])
        address = server.grpc if protocol == "grpc" else server.http
        return asyncio.run(LoadGenerator(sessions={model: spec}, most_windows=1).outputs(model, address))

    with serve(tmp_path) as server:
        over_http, over_grpc = outputs(server, "http"), outputs(server, "grpc")
        with pytest.raises(
            MeasurementError, match=r"the responses of 'other' could not be compared: .*other"
        ):
            outputs(server, "http", "other")
    assert len(over_http) == 3
    assert difference(over_http, over_grpc, 0.0) == ""
    assert difference(over_http[:1], over_http[1:2], 0.01)
    assert {name: values.shape for name, values in over_http[0].items()} == {
        "OUTPUT0": (1, 16),
        "OUTPUT1": (1, 16),
    }


@pytest.mark.parametrize(
    ("ours", "theirs", "reason"),
    [
        ({"y": np.array([1.0, 2.0])}, {"y": np.array([1.0, 2.01])}, ""),
        ({"y": np.array([1.0, 2.0])}, {"y": np.array([1.0, 2.5])}, "differs from the default's by 20.00%"),
        ({"y": np.array([1.0])}, {"y": np.array([np.nan])}, "is not finite"),
        ({"y": np.array([1.0, 2.0])}, {"y": np.array([1.0])}, "has shape"),
        ({"y": np.array(["a"], object)}, {"y": np.array(["b"], object)}, "in 1 of 1 elements"),
        ({}, {"y": np.array([1.0])}, "lack output 'y'"),
        ({"y": np.array([])}, {"y": np.array([])}, ""),
    ],
)
def test_answers_are_compared(ours: dict[str, Any], theirs: dict[str, Any], reason: str) -> None:
    found = difference([theirs], [ours], 0.01)
    assert reason in found
    assert bool(found) == bool(reason)
