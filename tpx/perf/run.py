"""One run of the command line: a session, its levels one after the other, and the report of them."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime

from tpx.perf.answers.highest import bearable, highest_answer, highest_course
from tpx.perf.loops import event_loop
from tpx.perf.observer import SILENT, Observer
from tpx.perf.options import SessionSpec
from tpx.perf.report.model import Report
from tpx.perf.session import Session
from tpx.perf.sweep import Manner, sweep

__all__ = ["event_loop", "run"]


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a run would do, and whether its first request was answered as it should be."""

    text: str
    good: bool
    notices: tuple[str, ...]


async def dry_run(spec: SessionSpec, in_process: str = "") -> DryRun:
    """Prepare everything as a run does, send one request, and say what a run would do."""
    from tpx.perf.probe import probe  # late
    from tpx.perf.report.console import plan_text

    async with Session(spec, in_process=in_process) as session:
        probed = await probe(session.connected, spec)
        text = plan_text(spec, session.connected, session.settings, probed)
        return DryRun(text, probed.good, session.connected.notices)


async def run(
    spec: SessionSpec,
    *,
    observer: Observer = SILENT,
    stop: asyncio.Event | None = None,
    in_process: str = "",
) -> Report:
    """The whole run. Setting `stop` ends it with what was measured until then."""
    stop = stop or asyncio.Event()
    started = datetime.now(UTC)
    async with Session(spec, observer=observer, stop=stop, in_process=in_process) as session:
        levels = await sweep(
            spec.levels,
            session.settings,
            session.measure,
            stop,
            Manner(
                meets=bearable if spec.answers.slo else None,
                search=highest_course if spec.answers.slo else None,
                stop_on_unstable=spec.answers.stop_on_unstable,
                pause_s=spec.course.cooldown_seconds,
            ),
        )
        finished = datetime.now(UTC)
    return Report(
        config=spec,
        server=session.connected.server,
        model=session.connected.model,
        levels=levels.results,
        error="; ".join(filter(None, (levels.error, *session.problems))),
        answer=highest_answer(levels.results) if spec.answers.slo else levels.answer,
        started=started.isoformat(timespec="milliseconds"),
        finished=finished.isoformat(timespec="milliseconds"),
        interrupted=stop.is_set(),
        offset_ns=session.offset_ns,
    )
