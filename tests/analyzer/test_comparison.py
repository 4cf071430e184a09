"""Two runs compared: what is the same, what is sure, and the statuses of the gate."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.analyzer.measuring import make_latency, make_measurement
from tpx.analyzer.comparison import compare_runs
from tpx.analyzer.results.goals import Goals
from tpx.analyzer.results.journal import (
    SCHEMA,
    Configured,
    Journal,
    Measured,
    Provenance,
    RunEnded,
    RunStarted,
    read_last_run,
)
from tpx.analyzer.results.measurement import Configuration, LoadPoint, Variant
from tpx.analyzer.results.run import Run
from tpx.cli.analyze import main
from tpx.perf.options.measuring import Strictness
from tpx.perf.statistics.intervals import Interval

FACTOR = {"m_config_default": 1.0, "m_config_0": 1.5}
RATES = (1000.0, 1010.0, 990.0, 1005.0)


def write_run(
    directory: Path,
    *,
    rates: tuple[float, ...] = RATES,
    texts: dict[str, str] | None = None,
    spread: float | None = None,
    model: str = "m",
) -> Path:
    """A run of two configurations, measured once for each rate; `spread` is a half width of intervals."""
    path = directory / "run.jsonl"
    with Journal(path) as journal:
        journal.append(
            RunStarted(
                schema=SCHEMA,
                models=((model,),),
                goals=Goals(),
                top=3,
                settings={},
                provenance=Provenance(command=(), started="", versions={}, host={}),
            )
        )
        for name, factor in FACTOR.items():
            journal.append(
                Configured(
                    configuration=Configuration(
                        variant=Variant(models=(model,), name=name, delta={} if factor == 1 else {"x": 1}),
                        text=(texts or {}).get(name, f"text of {name}"),
                        instance_group="1:CPU",
                        instances=1,
                        max_batch_size=0,
                        dynamic_batching=False,
                    )
                )
            )
            for number, rate in enumerate(rates):  # after the search, every other one is a final round
                value = rate * factor
                journal.append(
                    Measured(
                        model=model,
                        measurement=make_measurement(
                            variant=name,
                            load=LoadPoint(value=4),
                            round=number,
                            throughput=value,
                            latency=make_latency(p99_ns=round(4e9 / value)),
                            throughput_range=None
                            if spread is None
                            else Interval(value=0.0, low=value * (1 - spread), high=value * (1 + spread)),
                        ),
                    )
                )
        journal.append(RunEnded(outcome="complete", elapsed_ns=1))
    return path


def read(path: Path) -> Run:
    return Run.from_records(read_last_run(path))


def runs_of(place: Path, *factors: float) -> list[Run]:
    """Runs of the same thing, each faster by another factor."""
    return [
        read(write_run(place / str(number), rates=tuple(rate * factor for rate in RATES)))
        for number, factor in enumerate(factors)
    ]


def findings(before: list[Run], after: list[Run], strictness: Strictness | None = None) -> set[str]:
    found = compare_runs(before, after, strictness or Strictness())
    return {pair.difference.finding for pair in found.pairs}


def slower(share: float) -> tuple[float, ...]:
    return tuple(rate * (1 - share) for rate in RATES)


def test_one_run_on_each_side_is_never_a_verdict(tmp_path: Path) -> None:
    (before,), (after,) = runs_of(tmp_path / "a", 1.0), runs_of(tmp_path / "b", 0.5)
    for pair in ([before], [before]), ([before], [after]):
        found = compare_runs(*pair, Strictness())
        assert {pair.difference.finding for pair in found.pairs} == {"undecided"}
        assert len(found.pairs) == 6  # two configurations and what is recommended, two figures each
    assert found.pairs[0].difference.relative == pytest.approx(-0.5)


def test_three_runs_before_tell_by_how_much_runs_differ(tmp_path: Path) -> None:
    before = runs_of(tmp_path / "a", 1.0, 1.01, 0.99)
    assert findings(before, runs_of(tmp_path / "b", 0.7)) == {"worse"}
    assert findings(before, runs_of(tmp_path / "c", 1.4, 1.41)) == {"better"}
    assert findings(before, runs_of(tmp_path / "d", 0.95)) == {"undecided"}
    assert findings(before, runs_of(tmp_path / "e", 1.0), Strictness(min_effect=0.3)) == {"same"}
    noisy = runs_of(tmp_path / "f", 0.6, 1.0, 1.5)
    assert findings(noisy, runs_of(tmp_path / "g", 0.7)) == {"undecided"}


def test_what_is_recommended_is_a_comparison_of_its_own(tmp_path: Path) -> None:
    """Its correction is that of two figures, however many configurations there are."""
    found = compare_runs(runs_of(tmp_path / "a", 1.0, 1.01, 0.99), runs_of(tmp_path / "b", 0.7), Strictness())
    assert {p.difference.contrast.comparisons for p in found.pairs if p.role} == {2}
    assert {p.difference.contrast.comparisons for p in found.pairs if not p.role} == {4}


def test_configurations_are_the_same_by_their_text(tmp_path: Path) -> None:
    before = write_run(tmp_path / "a")
    renamed = {"m_config_default": "text of m_config_0", "m_config_0": "another"}
    after = write_run(tmp_path / "b", texts=renamed)
    found = compare_runs([read(before)], [read(after)], Strictness())
    assert {(p.before, p.after) for p in found.pairs if not p.role} == {("m_config_0", "m_config_default")}
    assert (found.only_before, found.only_after) == (("m_config_default",), ("m_config_0",))


def test_the_gate_fails_with_five_for_worse_and_seven_for_undecided(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline = [
        str(write_run(tmp_path / f"a{n}", rates=slower(share))) for n, share in enumerate((0, 0.01, -0.01))
    ]
    after = write_run(tmp_path / "b", rates=slower(0.4))
    words = ["compare", str(after), "--baseline", *baseline, "--json", str(tmp_path / "out.json")]
    assert main(words) == 5
    out = capsys.readouterr().out
    assert "m_config_0 (recommended)" in out
    assert "6 worse (6 figures compared)" in out
    content = json.loads((tmp_path / "out.json").read_text())
    assert {entry["finding"] for entry in content["compare"]} == {"worse"}
    faster = write_run(tmp_path / "c", rates=slower(-0.5))
    assert main(["compare", str(faster), "--baseline", *baseline]) == 0
    capsys.readouterr()
    assert main(["compare", baseline[0], str(after)]) == 7
    assert capsys.readouterr().out.startswith("Undecided: one run, or two, do not tell how runs differ")
    assert main(["compare", baseline[0], str(after), "--undecided", "pass"]) == 0


def test_only_what_both_runs_recommend_is_called_recommended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sure = write_run(tmp_path / "a")
    # the gain of the best was not measured again
    unsure = write_run(tmp_path / "b", rates=(900.0,))
    assert main(["compare", str(sure), str(unsure), "--json", str(tmp_path / "out.json")]) == 7
    out = capsys.readouterr().out
    assert "m_config_0 (best)" in out
    assert "recommended" not in out
    pairs = json.loads((tmp_path / "out.json").read_text())["compare"]
    assert not any(pair["recommended"] for pair in pairs)
    assert [pair["best"] for pair in pairs].count(True) == 2  # throughput and p99


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "takes two runs, or some after --baseline RUN RUN RUN; got 0"),
        (["{a}", "/nowhere/at/all"], "no run found"),
        (["{a}", "{a}", "--alpha=0.7"], "--alpha. The value must be in range (0, 0.5)"),
        (["{a}", "{a}", "--min-effect=-1%"], "--min-effect"),
        (["{a}", "{a}", "--json=/nowhere/at/all.json"], "cannot write"),
        (["{a}", "{other}"], "no configuration in common under the same load"),
    ],
)
def test_what_cannot_be_compared_is_status_two(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = {"a": write_run(tmp_path / "a"), "other": write_run(tmp_path / "o", model="other")}
    assert main(["compare", *(word.format(**paths) for word in words)]) == 1
    assert message in capsys.readouterr().err


def test_what_is_recommended_is_compared_and_not_what_ranks_first(replay: Callable[..., Run]) -> None:
    """A configuration with more instances that is better by less than can be told is not recommended."""
    table = [
        make_measurement(variant=f"alexnet_config_{name}", load=LoadPoint(value=1), throughput=throughput)
        for name, throughput in (("default", 100.0), ("0", 150.0), ("1", 151.0))
    ]
    run = replay(table, concurrency=(1,), run_config_search_max_instance_count=2)
    pairs = compare_runs([run], [run], Strictness()).pairs
    assert {(p.before, p.after) for p in pairs if p.role == "recommended"} == {
        ("alexnet_config_0", "alexnet_config_0")
    }
