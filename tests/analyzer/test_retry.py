"""What failed is tried again: nothing else is measured twice, and names keep their configurations."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.analyzer.conftest import ALEXNET
from tests.analyzer.measuring import make_latency, make_measurement
from tests.analyzer.simulated import OfflineRunner, replayed
from tpx.analyzer.options import ProfileSpec
from tpx.analyzer.options.models import ModelToProfile
from tpx.analyzer.profile import Event, Profile, TrialEnded
from tpx.analyzer.results.journal import Journal, read_last_run
from tpx.analyzer.results.measurement import LoadPoint, Measurement, TrialFailure
from tpx.analyzer.results.run import Run, RunRecords
from tpx.analyzer.trial import TrialRunner
from tpx.analyzer.variants import OutputRepository
from tpx.cli.analyze import main
from tpx.options import build

BATCHING = {**ALEXNET, "max_batch_size": 4}
LOADS = (1, 2)
RATES = {"default": 100.0, "0": 110.0, "1": 150.0, "2": 200.0, "3": 120.0, "4": 160.0, "5": 210.0}


def measured(number: str, load: int) -> Measurement:
    return make_measurement(
        variant=f"alexnet_config_{number}",
        load=LoadPoint(value=load),
        throughput=RATES[number] * load,
        latency=make_latency(p99_ns=5_000_000),
        duration_ns=10**9,
    )


def table(*, without: Iterable[tuple[str, int]] = ()) -> list[Measurement]:
    return [measured(n, load) for n in RATES for load in LOADS if (n, load) not in set(without)]


def profile(
    directory: Path, recorded: list[Measurement], *, retry: bool = False, stop_after: int | None = None
) -> tuple[Run, list[TrialEnded]]:
    """The run in this directory, begun or gone on with; and the trials that were carried out."""
    config = build(
        ProfileSpec,
        {
            "profile_models": (ModelToProfile(name="alexnet"),),
            "export_path": directory,
            "concurrency": LOADS,
            "early_exit_enable": True,
            "run_config_search_max_instance_count": 2,
            "run_config_search_max_model_batch_size": 4,
        },
    )
    path = directory / "run.jsonl"
    earlier = RunRecords(read_last_run(path)) if path.exists() else None
    if earlier is not None and retry:
        earlier.retry_failed()
    events: list[TrialEnded] = []
    stop = asyncio.Event()

    def observe(event: Event) -> None:
        if isinstance(event, TrialEnded):
            events.append(event)
            if len(events) == stop_after:
                stop.set()

    repository = OutputRepository(directory / "output", None, keep=earlier is not None)
    trials = TrialRunner(
        OfflineRunner({"alexnet": BATCHING}, replayed(recorded)), repository, monitoring_interval_s=1
    )
    with Journal(path) as journal:
        search = Profile(config, trials, journal, observe, earlier, stop)
        asyncio.run(search.run(("tpx",)))
    return Run.from_records(read_last_run(path)), events


def configurations(run: Run) -> dict[str, tuple[int, int]]:
    """Instances and greatest batch, by name, but for the default."""
    variants = [v for v in run.models[0].variants if not v.variant.is_default]
    return {v.variant.name: (v.configuration.instances, v.configuration.max_batch_size) for v in variants}


def test_a_trial_that_failed_is_carried_out_again_and_the_search_goes_on_from_it(tmp_path: Path) -> None:
    before, _ = profile(tmp_path, table(without=[("default", 2), ("3", 2)]))
    assert len(before.models[0].failures) == 2
    after, tried = profile(tmp_path, table(), retry=True)
    searched = [(t.trial.variant.name, t.trial.load.value) for t in tried if not t.trial.round]
    assert searched[:2] == [("alexnet_config_default", 2), ("alexnet_config_3", 2)]
    assert after.models[0].failures == ()
    assert after.outcome == "complete"
    trials = [(v.variant.name, m.load) for v in after.models[0].variants for m in v.measurements]
    assert len(trials) == len(set(trials))


def test_names_keep_their_configurations_where_the_search_goes_elsewhere(tmp_path: Path) -> None:
    """A batch size that fails ends the walk to larger ones, which come late into numbers then."""
    before, _ = profile(tmp_path, table(without=[("1", 1)]))
    short = configurations(before)
    assert short["alexnet_config_2"] == (2, 1), "instances 1 ended with batch 2"
    after, _ = profile(tmp_path, table(), retry=True)
    grown = configurations(after)
    assert {name: grown[name] for name in short} == short
    assert (1, 4) in grown.values()
    assert len(set(grown.values())) == len(grown)


def test_final_rounds_are_those_after_the_retry(tmp_path: Path) -> None:
    before, _ = profile(tmp_path, table(without=[("1", 1)]))
    assert any(v.repetitions for v in before.models[0].variants)
    after, tried = profile(tmp_path, table(), retry=True)
    repeated = [t for t in tried if t.trial.round]
    assert sum(len(v.repetitions) for v in after.models[0].variants) == len(repeated) > 0
    finals = [d.text for d in after.models[0].decisions if d.text.startswith("final repetitions: ")]
    assert len(finals) == 1


def test_a_retry_that_is_cut_off_is_resumed_as_one(tmp_path: Path) -> None:
    gaps = [("default", 2), ("3", 2)]
    profile(tmp_path, table(without=gaps))
    cut, _ = profile(tmp_path, table(), retry=True, stop_after=1)
    assert cut.outcome == "interrupted"
    assert [f.variant for f in cut.models[0].failures] == ["alexnet_config_3"], "not tried again yet"
    after, tried = profile(tmp_path, table())
    assert (tried[0].trial.variant.name, tried[0].trial.load.value) == ("alexnet_config_3", 2)
    assert (after.outcome, after.models[0].failures) == ("complete", ())


def test_what_fails_again_is_told_once(tmp_path: Path) -> None:
    gap = table(without=[("3", 2)])
    profile(tmp_path, gap)
    after, tried = profile(tmp_path, gap, retry=True)
    assert isinstance(tried[0].outcome, TrialFailure)
    assert [(f.variant, f.load.value) for f in after.models[0].failures] == [("alexnet_config_3", 2)]


def test_retrying_needs_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "models" / "m").mkdir(parents=True)
    words = ["-m", str(tmp_path / "models"), "--profile-models=m", "-e", str(tmp_path / "export")]
    assert main(["profile", *words, "--retry-failed"]) == 1
    assert "run.jsonl contains no run to resume" in capsys.readouterr().err
