"""Two runs compared: what is the same, what is sure, and the statuses of the gate."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

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
from tpx.analyzer.results.measurement import Configuration, Latency, LoadPoint, Measurement, Range, Variant
from tpx.analyzer.results.run import Run
from tpx.cli.analyze import main
from tpx.perf.options.measuring import Strictness

FACTOR = {"m_config_default": 1.0, "m_config_0": 1.5}
RATES = (1000.0, 1010.0, 990.0, 1005.0)


def write_run(
    directory: Path,
    *,
    rates: tuple[float, ...] = RATES,
    texts: dict[str, str] | None = None,
    spread: float | None = None,
    model: str = "m",
    final_rounds: int = 0,
) -> Path:
    """A run of two configurations, measured once for each rate; `spread` is a half width of intervals."""
    path = directory / "run.jsonl"
    with Journal(path) as journal:
        journal.append(
            RunStarted(
                schema=SCHEMA,
                models=(model,),
                goals=Goals(),
                top=3,
                tolerance_percent=10,
                final_rounds=final_rounds,
                settings={},
                provenance=Provenance(command=(), started="", versions={}, host={}),
            )
        )
        for name, factor in FACTOR.items():
            journal.append(
                Configured(
                    configuration=Configuration(
                        variant=Variant(model=model, name=name, delta={} if factor == 1 else {"x": 1}),
                        text=(texts or {}).get(name, f"text of {name}"),
                        instance_group="1:CPU",
                        instances=1,
                        max_batch_size=0,
                        dynamic_batching=False,
                    )
                )
            )
            for rate in rates:
                value = rate * factor
                journal.append(
                    Measured(
                        model=model,
                        measurement=Measurement(
                            variant=name,
                            load=LoadPoint(value=4),
                            throughput=value,
                            latency=Latency(p99_ns=round(4e9 / value)),
                            throughput_range=None
                            if spread is None
                            else Range(low=value * (1 - spread), high=value * (1 + spread)),
                        ),
                    )
                )
        journal.append(RunEnded(outcome="complete", elapsed_ns=1))
    return path


def read(path: Path) -> Run:
    return Run.from_records(read_last_run(path))


def findings(before: Path, after: Path) -> set[str]:
    found = compare_runs(read(before), read(after), Strictness())
    return {pair.difference.finding for pair in found.pairs}


def slower(share: float) -> tuple[float, ...]:
    return tuple(rate * (1 - share) for rate in RATES)


def test_a_run_is_the_same_as_itself(tmp_path: Path) -> None:
    before = write_run(tmp_path / "a")
    found = compare_runs(read(before), read(before), Strictness())
    assert {pair.difference.finding for pair in found.pairs} == {"same"}
    assert len(found.pairs) == 6  # two configurations and what is recommended, two figures each


def test_a_tenth_less_is_worse_and_a_tenth_more_better(tmp_path: Path) -> None:
    before, after = write_run(tmp_path / "a"), write_run(tmp_path / "b", rates=slower(0.1))
    assert findings(before, after) == {"worse"}
    assert findings(after, before) == {"better"}


def test_a_difference_within_the_noise_is_none(tmp_path: Path) -> None:
    before = write_run(tmp_path / "a", rates=(800.0, 1200.0, 1000.0))
    after = write_run(tmp_path / "b", rates=(720.0, 1080.0, 900.0))
    assert findings(before, after) == {"same"}


def test_a_sure_difference_that_is_too_small_to_matter_is_none(tmp_path: Path) -> None:
    tight = (1000.0, 1000.1, 999.9, 1000.0)
    before = write_run(tmp_path / "a", rates=tight)
    after = write_run(tmp_path / "b", rates=tuple(rate * 0.99 for rate in tight))
    assert findings(before, after) == {"same"}


def test_single_measurements_are_judged_by_their_intervals(tmp_path: Path) -> None:
    before = write_run(tmp_path / "a", rates=(1000.0,), spread=0.01)
    after = write_run(tmp_path / "b", rates=(900.0,), spread=0.01)
    wide = write_run(tmp_path / "c", rates=(900.0,), spread=0.3)
    bare = write_run(tmp_path / "d", rates=(900.0,))
    assert "worse" in findings(before, after)
    assert findings(before, wide) == {"same"}
    assert findings(before, bare) == {"same"}


def test_configurations_are_the_same_by_their_text(tmp_path: Path) -> None:
    before = write_run(tmp_path / "a")
    renamed = {"m_config_default": "text of m_config_0", "m_config_0": "another"}
    after = write_run(tmp_path / "b", texts=renamed)
    found = compare_runs(read(before), read(after), Strictness())
    assert {(p.before, p.after) for p in found.pairs if not p.role} == {("m_config_0", "m_config_default")}
    assert (found.only_before, found.only_after) == (("m_config_default",), ("m_config_0",))


def test_the_gate_fails_with_five_only_where_something_became_worse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = write_run(tmp_path / "a"), write_run(tmp_path / "b", rates=slower(0.1))
    assert main(["compare", str(before), str(tmp_path / "b"), "--json", str(tmp_path / "out.json")]) == 5
    out = capsys.readouterr().out
    assert "m_config_0 (recommended)" in out
    assert "6 worse, 0 better" in out
    content = json.loads((tmp_path / "out.json").read_text())
    assert {entry["finding"] for entry in content["compare"]} == {"worse"}
    assert main(["compare", str(after), str(before)]) == 0
    assert main(["compare", str(after), str(after), "--all"]) == 0
    assert "No significant difference (6 figures compared" in capsys.readouterr().out


def test_only_what_both_runs_recommend_is_called_recommended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sure = write_run(tmp_path / "a")
    # the gain of the best was not measured again, though final rounds were planned
    unsure = write_run(tmp_path / "b", rates=slower(0.1), final_rounds=5)
    assert main(["compare", str(sure), str(unsure), "--json", str(tmp_path / "out.json")]) == 5
    out = capsys.readouterr().out
    assert "m_config_0 (best)" in out
    assert "recommended" not in out
    pairs = json.loads((tmp_path / "out.json").read_text())["compare"]
    assert not any(pair["recommended"] for pair in pairs)
    assert [pair["best"] for pair in pairs].count(True) == 2  # throughput and p99


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "takes two runs, got 0"),
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
        Measurement(variant=f"alexnet_config_{name}", load=LoadPoint(value=1), throughput=throughput)
        for name, throughput in (("default", 100.0), ("0", 150.0), ("1", 151.0))
    ]
    run = replay(table, concurrency=(1,), run_config_search_max_instance_count=2)
    pairs = compare_runs(run, run, Strictness()).pairs
    assert {(p.before, p.after) for p in pairs if p.role == "recommended"} == {
        ("alexnet_config_0", "alexnet_config_0")
    }
