"""A run that is cut off at any moment goes on where it was: nothing lost, nothing measured twice."""

import random
import time
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

from tests.analyzer.measuring import make_measurement
from tests.analyzer.resumable import run
from tpx.analyzer.options.file import check_same_run
from tpx.analyzer.results.goals import Goals
from tpx.analyzer.results.journal import (
    SCHEMA,
    Measured,
    Provenance,
    Record,
    RunEnded,
    RunStarted,
    read_last_run,
)
from tpx.analyzer.results.measurement import LoadPoint, Measurement, Trial, Variant
from tpx.analyzer.results.run import Run, RunRecords
from tpx.errors import UsageError

VARIANT = Variant(models=("m",), name="m_config_default")


def started(**settings: object) -> RunStarted:
    return RunStarted(
        schema=SCHEMA,
        models=(("m",),),
        goals=Goals(),
        top=3,
        settings=settings,
        provenance=Provenance(command=("tpx", "analyze"), started="", versions={}, host={}),
    )


def measured(concurrency: int, round_: int = 0) -> Measured:
    return Measured(
        model="m",
        measurement=make_measurement(
            variant=VARIANT.name,
            load=LoadPoint(value=concurrency),
            throughput=1.0,
            round=round_,
            duration_ns=7,
        ),
    )


def table(directory: Path) -> list[tuple[Measurement, ...]]:
    """What the reports are made of, without the time it took."""
    run = Run.from_records(read_last_run(directory / "run.jsonl"))
    variants = run.models[0].variants
    return [tuple(replace(m, duration_ns=0, cost_ns=0) for m in v.measurements) for v in variants]


@pytest.fixture(scope="module")
def forks() -> ForkServerContext:
    """Starts processes that have imported the analyzer already."""
    context = get_context("forkserver")
    context.set_forkserver_preload([run.__module__])
    return context


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_run_that_is_killed_again_and_again_ends_with_the_table_of_one_that_was_not(
    forks: ForkServerContext, tmp_path: Path
) -> None:
    directory, whole = tmp_path / "killed", tmp_path / "whole"
    for each in (directory, whole):
        each.mkdir()
    run(whole, 0)
    chance = random.Random(7)
    journal, kills = directory / "run.jsonl", 0
    while True:
        process = forks.Process(target=run, args=(directory, 0.02))
        before = journal.stat().st_size if journal.exists() else 0
        process.start()
        while process.is_alive() and (journal.stat().st_size if journal.exists() else 0) == before:
            time.sleep(0.005)
        process.join(chance.uniform(0.0, 0.6))
        if process.exitcode is not None:
            break
        process.kill()
        process.join()
        kills += 1
    assert process.exitcode == 0
    assert kills >= 3
    assert table(directory) == table(whole)
    records = read_last_run(directory / "run.jsonl")
    measured = [r.measurement for r in records if isinstance(r, Measured)]
    trials = [(m.variant, m.load, m.round) for m in measured]
    assert len(trials) == len(set(trials)) >= 41 + 4 * 2
    assert len((directory / "measured.log").read_text().splitlines()) <= len(trials) + kills
    undisturbed = Run.from_records(read_last_run(whole / "run.jsonl"))
    again = Run.from_records(records)
    assert again.models[0].decisions == undisturbed.models[0].decisions
    assert (again.outcome, undisturbed.outcome) == ("complete", "complete")


def test_an_outcome_is_found_as_often_as_its_trial_was_carried_out() -> None:
    earlier = RunRecords([started(), measured(1), measured(1, 1), measured(1, 1), measured(2)])
    trial = Trial(variant=VARIANT, load=LoadPoint(value=1), round=1)
    assert earlier.outcome(trial) is not None
    assert earlier.outcome(trial) is not None
    assert earlier.outcome(trial) is None
    assert earlier.outcome(replace(trial, round=0)) is not None
    assert earlier.outcome(replace(trial, load=LoadPoint(value=3))) is None


@pytest.mark.parametrize(
    ("records", "elapsed_ns", "complete"),
    [
        ([measured(1), measured(2)], 14, False),
        ([measured(1), RunEnded(outcome="interrupted", elapsed_ns=100), measured(2)], 107, False),
        ([measured(1), RunEnded(outcome="complete", elapsed_ns=100)], 100, True),
    ],
)
def test_the_time_of_a_run_is_that_of_all_its_parts(
    records: list[Record], elapsed_ns: int, complete: bool
) -> None:
    earlier = RunRecords([started(), *records])
    assert (earlier.elapsed_ns, earlier.complete) == (elapsed_ns, complete)


def test_a_run_is_resumed_with_its_own_options_only() -> None:
    earlier = RunRecords([started(concurrency=[1, 2], quiet=True)])
    check_same_run(earlier, {"concurrency": [1, 2], "html": "elsewhere.html"}, "run.jsonl")
    with pytest.raises(UsageError, match=r"differ: --batch-sizes, --concurrency\. It began as: tpx analyze"):
        check_same_run(earlier, {"concurrency": [1], "batch_sizes": [8]}, "run.jsonl")


def test_there_must_be_a_run_to_resume() -> None:
    with pytest.raises(UsageError, match=r"run\.jsonl contains no run"):
        check_same_run(RunRecords(), {}, "run.jsonl")
