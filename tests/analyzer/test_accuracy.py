"""The accuracy gate: a variant that computes something else than the default is not measured."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.answering import Request, answering
from tpx.analyzer.results.measurement import (
    Configuration,
    LoadPoint,
    Measurement,
    Outcome,
    Trial,
    TrialFailure,
    Variant,
)
from tpx.analyzer.runners.servers import VisibleServer
from tpx.analyzer.trial import Gate, TrialRunner, ask, difference, may_answer_otherwise, requests_of
from tpx.analyzer.variants import OutputRepository, configure
from tpx.errors import MeasurementError

CONFIG: dict[str, Any] = {
    "name": "m",
    "max_batch_size": 4,
    "input": [
        {"name": "x", "data_type": "TYPE_FP32", "dims": ["-1", "3"]},
        {"name": "label", "data_type": "TYPE_STRING", "dims": ["1"]},
        {"name": "n", "data_type": "TYPE_INT64", "dims": ["2"]},
        {"name": "on", "data_type": "TYPE_BOOL", "dims": ["1"]},
    ],
}


class Server:
    """Answers with the sum of `x`, off by a factor where the served variant says so."""

    def __init__(self) -> None:
        self.factor = 1.0
        self.asked = 0
        self.address = ""

    def answer(self, request: Request) -> tuple[int, bytes]:
        self.asked += 1
        if not self.factor:
            return 500, b'{"error": "no memory"}'
        total = sum(json.loads(request.body)["inputs"][0]["data"]) * self.factor
        outputs = [{"name": "y", "datatype": "FP32", "shape": [1], "data": [total]}]
        return 200, json.dumps({"outputs": outputs}).encode()


class Runner:
    """A runner over that server: `factors` are those of variants by name."""

    def __init__(self, served: Server, factors: dict[str, float]) -> None:
        self._served = served
        self._factors = factors
        self.measured: list[str] = []
        self._name = ""

    @property
    def server(self) -> VisibleServer:
        return VisibleServer(pid=None, http_address=self._served.address)

    async def default_config(self, model: str) -> dict[str, Any]:
        self._served.factor = 1.0
        return CONFIG

    async def prepare(self, configuration: Configuration | None, directory: Path) -> None:
        self._name = configuration.variant.name if configuration else ""
        self._served.factor = self._factors.get(self._name, 1.0)

    async def measure(self, load: LoadPoint, *, one_window: bool = False) -> Measurement:
        self.measured.append(self._name)
        return Measurement(variant=self._name, load=load, throughput=1.0)

    async def close(self) -> None:
        return


@pytest.fixture
def served() -> Iterator[Server]:
    server = Server()
    with answering(server.answer) as server.address:
        yield server


def outcome_of(runner: Runner, tmp_path: Path, *deltas: dict[str, Any]) -> list[Outcome]:
    trials = TrialRunner(
        runner, OutputRepository(tmp_path / "out", None, override=True), monitoring_interval_s=1
    )

    async def run() -> list[Outcome]:
        found = []
        for number, delta in enumerate(deltas):
            variant = Variant(model="m", name=f"m_config_{number}", delta=delta)
            trial = Trial(variant=variant, load=LoadPoint(value=1))
            found.append(await trials.run(configure(variant, CONFIG), trial))
        return found

    return asyncio.run(run())


LEVEL: dict[str, Any] = {"optimization": {"graph": {"level": 1}}}


def test_a_variant_that_differs_fails_with_its_reason_and_is_not_measured(
    served: Server, tmp_path: Path
) -> None:
    runner = Runner(served, {"m_config_0": 1.05})
    (outcome,) = outcome_of(runner, tmp_path, LEVEL)
    assert isinstance(outcome, TrialFailure)
    assert outcome.reason == (
        "output 'y' differs from the default's by 5.00% of its greatest value (allowed: 1.00%): it does not "
        "return the same results as the default"
    )
    assert runner.measured == []


def test_a_variant_that_is_near_enough_is_measured(served: Server, tmp_path: Path) -> None:
    runner = Runner(served, {"m_config_0": 1.005})
    (outcome,) = outcome_of(runner, tmp_path, LEVEL)
    assert isinstance(outcome, Measurement)


def test_a_verdict_on_a_variant_is_kept(served: Server, tmp_path: Path) -> None:
    runner = Runner(served, {"m_config_0": 1.5})
    trials = TrialRunner(runner, OutputRepository(tmp_path / "out", None), monitoring_interval_s=1)
    variant = Variant(model="m", name="m_config_0", delta=LEVEL)

    async def run() -> tuple[int, int]:
        configuration = configure(variant, CONFIG)
        await trials.run(configuration, Trial(variant=variant, load=LoadPoint(value=1)))
        asked = served.asked
        await trials.run(configuration, Trial(variant=variant, load=LoadPoint(value=2)))
        return asked, served.asked

    first, second = asyncio.run(run())
    assert first == second


def test_variants_of_instances_and_batches_are_not_asked(served: Server, tmp_path: Path) -> None:
    outcome_of(Runner(served, {}), tmp_path, {"instance_group": [{"count": 2, "kind": "KIND_CPU"}]})
    assert served.asked == 0
    assert not may_answer_otherwise(Variant(model="m", name="m", delta={"max_batch_size": 2}))


def test_a_server_that_does_not_answer_is_a_failure_with_its_words(served: Server, tmp_path: Path) -> None:
    (outcome,) = outcome_of(Runner(served, {"m_config_0": 0.0}), tmp_path, LEVEL)
    assert isinstance(outcome, TrialFailure)
    assert outcome.reason == "the responses of 'm' could not be compared: no memory"


def test_nobody_there_is_a_measurement_error() -> None:
    with pytest.raises(MeasurementError, match="could not be compared"):
        asyncio.run(ask("127.0.0.1:1", "m", requests_of(CONFIG, Gate())))


def test_requests_fit_the_configuration_and_are_drawn_by_the_seed() -> None:
    first = requests_of(CONFIG, Gate(seed=1))
    assert first == requests_of(CONFIG, Gate(seed=1))
    assert first != requests_of(CONFIG, Gate(seed=2))
    shapes = {i["name"]: (i["datatype"], i["shape"], len(i["data"])) for i in first[0]["inputs"]}
    assert shapes == {
        "x": ("FP32", [1, 1, 3], 3),
        "label": ("BYTES", [1, 1], 1),
        "n": ("INT64", [1, 2], 2),
        "on": ("BOOL", [1, 1], 1),
    }
    shaped = requests_of(CONFIG, Gate(shapes={"x": (5, 3)}))
    assert shaped[0]["inputs"][0]["shape"] == [1, 5, 3]


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
    found = difference([theirs], [ours], Gate())
    assert reason in found
    assert bool(found) == bool(reason)
