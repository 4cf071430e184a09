"""`tpx perf compare`, `--ab URL1 URL2 ...` and `--ab-client`: what differs, with an exit code."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from tpx.argv import from_argv
from tpx.cli.commands import Exit
from tpx.cli.comparing import PerfCompareConfig, named_runs, report_comparison, sides
from tpx.cli.interrupts import Interrupts
from tpx.cli.messages import complain
from tpx.errors import UsageError
from tpx.perf.compare import Levels, compare, difference_json, read_levels
from tpx.perf.in_turns import ComparisonRounds, run_in_turns
from tpx.perf.loops import event_loop
from tpx.perf.options import SessionSpec
from tpx.perf.report.comparison import Against, Compared


def main(argv: Sequence[str]) -> int:
    """Print the differences; return 5 if anything regressed, 7 if undecided, else 0. Raises UsageError."""
    config = from_argv(PerfCompareConfig, argv)
    paths = sides(config.runs, config.baseline)
    before, after = ([levels_of(path) for path in side] for side in paths)
    comparison = compare(before, after, config.comparison.strictness)
    old, new = (named_runs(side) for side in paths)
    if not comparison.differences:
        left_out = "; ".join(comparison.left_out)
        raise UsageError(f"{old} and {new} have no load to compare ({left_out})")
    pair = Against(
        title=f"{new} against {old}",
        differences=comparison.differences,
        left_out=comparison.left_out,
    )
    document = {"schema": 1, "compare": difference_json(comparison.differences)}
    compared = Compared(pairs=(pair,), strictness=config.comparison.strictness)
    return report_comparison(compared, config.comparison, document)


def levels_of(path: Path) -> Levels:
    """Return the levels in a file of `tpx perf --json`. Raises UsageError."""
    try:
        return read_levels(json.loads(path.read_text("utf-8")), str(path))
    except OSError as exc:
        raise UsageError(f"cannot read {path}: {exc.strerror}") from exc
    except ValueError as exc:
        raise UsageError(f"{path} is not JSON: {exc}") from exc


def compare_in_turns(config: SessionSpec, argv: Sequence[str], in_process: str = "") -> int:
    """`tpx perf --ab` or `--ab-client`: measure in turns and print what differs; return the exit status.

    Interrupted runs are judged by what they measured only with --allow-partial.
    """
    with asyncio.Runner(loop_factory=event_loop) as runner:
        found = runner.run(_run_comparison(config, in_process))
    if found is None:
        return Exit.INTERRUPTED
    what = "client" if config.comparing.ab_client else "server"
    base, *others = found.names
    compared_with = list(zip(others, found.differences, strict=True))
    pairs = [Against(title=f"{name} against {base}", differences=each) for name, each in compared_with]
    compared = Compared(pairs=tuple(pairs), strictness=config.strictness, interrupted=found.interrupted)
    document = {
        "schema": 1,
        "argv": list(argv),
        f"{what}s": list(found.names),
        "interrupted": found.interrupted,
        "rounds": [
            {"load": level.load, "blocks": [[dict(f.items()) for f in blocks] for blocks in level.blocks]}
            for level in found.levels
        ],
        "ab": [{what: name, "differences": difference_json(each)} for name, each in compared_with],
    }
    status = report_comparison(compared, config.output, document)
    if config.comparing.ab_client and any(d.finding == "better" for d in compared.differences):
        status = Exit.REGRESSION  # a client that measures better figures disagrees, too
    if found.interrupted and not config.answers.allow_partial:
        return Exit.INTERRUPTED
    return status


async def _run_comparison(config: SessionSpec, in_process: str) -> ComparisonRounds | None:
    begun = False

    def said(text: str) -> None:
        nonlocal begun
        begun = True
        complain(text)

    interrupts = Interrupts(lambda: begun, said)
    turns = run_in_turns(config, stop=interrupts.stop, said=said, in_process=in_process)
    return await interrupts.run(turns)
