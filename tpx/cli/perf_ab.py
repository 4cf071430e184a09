"""`tpx perf --ab URL1 URL2 ...`: two or more servers in turns, and whether they differ."""

import asyncio
from collections.abc import Sequence

from tpx.cli.commands import Exit
from tpx.cli.comparing import report_comparison
from tpx.cli.interrupts import Interrupts
from tpx.cli.messages import complain
from tpx.perf.answers.compare import difference_json
from tpx.perf.in_turns import ServerTurns, run_in_turns
from tpx.perf.options import SessionSpec
from tpx.perf.report.comparison import Against, Compared
from tpx.perf.run import event_loop


def main(config: SessionSpec, argv: Sequence[str], in_process: str = "") -> int:
    """Measure and print what differs; return the exit status.

    Interrupted runs are judged by what they measured only with --allow-partial.
    """
    with asyncio.Runner(loop_factory=event_loop) as runner:
        try:
            found = runner.run(_run(config, in_process))
        except asyncio.CancelledError:
            return Exit.INTERRUPTED
    status = report_comparison(_compared(found), config.output, _document(found, argv))
    if found.interrupted and not config.answers.allow_partial:
        return Exit.INTERRUPTED
    return status


async def _run(config: SessionSpec, in_process: str) -> ServerTurns:
    begun = False

    def said(text: str) -> None:
        nonlocal begun
        begun = True
        complain(text)

    interrupts = Interrupts(lambda: begun, said)
    turns = run_in_turns(config, stop=interrupts.stop, said=said, in_process=in_process)
    work = asyncio.ensure_future(turns)
    interrupts.watch(work)
    try:
        return await work
    finally:
        interrupts.unwatch()


def _compared(found: ServerTurns) -> Compared:
    base, *others = found.servers
    return Compared(
        pairs=tuple(
            Against(title=f"{server} against {base}", differences=differences)
            for server, differences in zip(others, found.differences, strict=True)
        ),
        strictness=found.strictness,
        interrupted=found.interrupted,
    )


def _document(found: ServerTurns, argv: Sequence[str]) -> dict[str, object]:
    return {
        "schema": 1,
        "argv": list(argv),
        "servers": list(found.servers),
        "interrupted": found.interrupted,
        "rounds": [
            {"load": level.load, "blocks": [[dict(f.items()) for f in blocks] for blocks in level.blocks]}
            for level in found.levels
        ],
        "ab": [
            {"server": server, "differences": difference_json(differences)}
            for server, differences in zip(found.servers[1:], found.differences, strict=True)
        ],
    }
