"""`tpx analyze` as a command: help, errors, exit statuses."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.analyzer.measuring import changed, make_latency, make_measurement
from tpx.analyzer.options.measuring import Gate
from tpx.analyzer.profile import Remark, TrialEnded, TrialStarted
from tpx.analyzer.reports.view import ReportView
from tpx.analyzer.results.measurement import LoadPoint, Trial, TrialFailure, Variant
from tpx.analyzer.results.run import Run
from tpx.analyzer.verdict import Finding, judge
from tpx.cli.analyze import SearchProgress, exit_status, main, print_results
from tpx.cli.commands import Exit
from tpx.perf.objectives import Compliance

Replay = Callable[..., Run]


def status_of(run: Run, *require: Gate) -> Exit:
    return exit_status(run, [judge(model, run.started.goals) for model in run.models], require)


def test_without_a_subcommand_the_subcommands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "profile" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["profil"], "did you mean 'profile'?"),
        (["profile"], "missing: --profile-models"),
        (["profile", "--profile-models", "m", "-m", "/nowhere/at/all"], "no such directory"),
    ],
)
def test_a_wrong_command_line_is_status_two(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 1
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_an_output_repository_in_use_stops_before_any_server_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "models" / "m").mkdir(parents=True)
    (tmp_path / "output" / "m_config_0").mkdir(parents=True)
    words = ["-m", str(tmp_path / "models"), "--profile-models", "m", "-e", str(tmp_path / "export")]
    assert main(["profile", *words, "--output-model-repository-path", str(tmp_path / "output")]) == 1
    assert "--override-output-model-repository" in capsys.readouterr().err
    assert not (tmp_path / "export").exists()


def test_without_a_run_to_resume_the_status_is_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "models" / "m").mkdir(parents=True)
    words = ["-m", str(tmp_path / "models"), "--profile-models", "m", "-e", str(tmp_path / "export")]
    assert main(["profile", *words, "--resume"]) == 1
    assert "run.jsonl contains no run to resume: leave out --resume" in capsys.readouterr().err


def test_exit_statuses_follow_the_outcome(replay: Replay) -> None:
    assert status_of(replay(), "satisfied", "conclusive") is Exit.OK
    assert status_of(replay([])) is Exit.FAILED
    assert status_of(replay(stop_after=5)) is Exit.INTERRUPTED
    assert status_of(replay(stop_after=0)) is Exit.INTERRUPTED


def test_a_run_that_was_cut_short_is_judged_only_where_that_is_allowed(replay: Replay) -> None:
    for run, status in ((replay(stop_after=5), Exit.OK), (replay(stop_after=0), Exit.FAILED)):
        verdicts = [judge(model, run.started.goals) for model in run.models]
        assert exit_status(run, verdicts, allow_partial=True) is status
    lost = replace(replay(stop_after=5), reason="the server has gone")
    assert status_of(lost) is Exit.FAILED


def test_a_verdict_that_nothing_satisfies_fails_where_satisfied_is_required(replay: Replay) -> None:
    run = replay(latency_budget=1.0)
    assert "no configuration satisfies" in judge(run.models[0], run.started.goals).sentence
    assert status_of(run) is Exit.OK
    assert status_of(run, "conclusive") is Exit.OK
    assert status_of(run, "satisfied", "conclusive") is Exit.OBJECTIVE_MISSED


def test_a_verdict_that_is_borderline_is_not_satisfied_either(replay: Replay) -> None:
    run = replay(latency_budget=30.0)
    verdict = judge(run.models[0], run.started.goals)
    assert verdict.best is not None
    borderline = replace(verdict, best=replace(verdict.best, compliance=Compliance.UNDECIDED))
    assert exit_status(run, [verdict], ("satisfied",)) is Exit.OK
    assert exit_status(run, [borderline], ("satisfied",)) is Exit.OBJECTIVE_MISSED


def test_an_undecided_verdict_fails_where_a_conclusive_one_is_required(replay: Replay) -> None:
    run = replay(run_config_search_max_instance_count=1)
    verdict = replace(judge(run.models[0], run.started.goals), finding=Finding.UNDECIDED)
    assert exit_status(run, [verdict]) is Exit.OK
    assert exit_status(run, [verdict], ("satisfied",)) is Exit.OK
    assert exit_status(run, [verdict], ("conclusive",)) is Exit.INCONCLUSIVE


def test_progress_tells_every_measurement_and_every_failure(capsys: pytest.CaptureFixture[str]) -> None:
    trial = Trial(variant=Variant(models=("m",), name="m_config_0", delta={"x": 1}), load=LoadPoint(value=8))
    started = TrialStarted(
        trial=trial, number=2, configurations_at_most=6, elapsed_ns=65_000_000_000, remaining_ns=None
    )
    measured = make_measurement(
        variant="m_config_0",
        load=trial.load,
        throughput=1001.77,
        latency=make_latency(p99_ns=8_274_000),
        stable=False,
    )
    failed = TrialFailure(variant="m_config_0", load=trial.load, reason="the server [died]")
    with SearchProgress(quiet=False, outlook=lambda search: f"outlook on {search.model}") as progress:
        for event in (
            started,
            TrialEnded(trial=trial, outcome=measured),
            TrialEnded(trial=trial, outcome=failed),
            replace(started, trial=replace(trial, round=3)),
            TrialEnded(trial=trial, outcome=changed(measured, stable=True)),
            replace(started, model_number=1, models=2),
            TrialEnded(trial=trial, outcome=changed(measured, stable=True)),
            replace(started, trial=replace(trial, round=3), model_number=2, models=2),
            TrialEnded(trial=trial, outcome=changed(measured, stable=True)),
            Remark(text="no GPU"),
        ):
            progress.observe(event)
    assert capsys.readouterr().err.splitlines() == [
        "[2/6] m_config_0 at concurrency 8: 1,000 infer/s, p99 8.27 ms  (not stable)",
        "[2/6] m_config_0 at concurrency 8: failed: the server [died]",
        "[final round 3] m_config_0 at concurrency 8: 1,000 infer/s, p99 8.27 ms",
        "[model 1/2, configuration 2/6] m_config_0 at concurrency 8: 1,000 infer/s, p99 8.27 ms",
        "[model 2/2, final round 3] m_config_0 at concurrency 8: 1,000 infer/s, p99 8.27 ms",
        "note: no GPU",
    ]


def test_a_quiet_run_tells_only_failures(capsys: pytest.CaptureFixture[str]) -> None:
    trial = Trial(variant=Variant(models=("m",), name="m_config_0"), load=LoadPoint(value=1))
    with SearchProgress(quiet=True, outlook=lambda search: f"outlook on {search.model}") as progress:
        progress.observe(
            TrialEnded(trial=trial, outcome=make_measurement(variant="m", load=trial.load, throughput=1.0))
        )
        progress.observe(
            TrialEnded(trial=trial, outcome=TrialFailure(variant="m", load=trial.load, reason="broken"))
        )
    assert capsys.readouterr().err.strip().endswith("failed: broken")


def test_a_verdict_ends_with_the_command_that_applies_it_if_there_is_something_to_apply(
    replay: Replay, capsys: pytest.CaptureFixture[str]
) -> None:
    run = replay()
    print_results(ReportView.of(run, export_path=Path("my runs")))
    told = capsys.readouterr().out
    assert told.rstrip().endswith(
        "\nApply it with: tpx analyze apply alexnet_config_4 --export-path 'my runs'"
    )
    alone = replace(run.models[0], variants=tuple(v for v in run.models[0].variants if v.variant.is_default))
    print_results(ReportView.of(replace(run, models=(alone,))))
    assert "tpx analyze apply" not in capsys.readouterr().out
