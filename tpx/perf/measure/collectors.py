"""Figures of a result that only some levels or runs have, besides those of every request."""

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from typing import Protocol

import numpy as np

from tpx.perf.connecting import ConnectedModel
from tpx.perf.inputs.feed import Conversation
from tpx.perf.levels import LATE_NS
from tpx.perf.loads.base import Load
from tpx.perf.measure.estimates import Sample
from tpx.perf.measure.ledger import MeasuredLevel
from tpx.perf.measure.streams import goodput_figures, request_spans, stream_figures
from tpx.perf.measure.wakeups import is_local, may_dominate, wake_ups
from tpx.perf.records import (
    MODEL_SHIFT,
    SUCCESS,
    Records,
    Rows,
    elapsed_ns,
    response_times,
    select_rows,
    succeeded,
)
from tpx.perf.results import (
    DOMINANT_SHARE,
    LevelResult,
    MemberFigures,
    OpenLoop,
    Sessions,
    Streaming,
    Verdict,
)
from tpx.perf.statistics.summaries import summarize


class Collector(Protocol):
    """Follows the levels of a run."""

    async def begin(self) -> None:
        """Prepare for a level whose load is open but has not sent anything."""

    async def finish(self, measured: MeasuredLevel, result: LevelResult) -> LevelResult:
        """Return the result with further figures; the load has stopped."""


GENERATED = (
    "The inputs were generated: if the model needs others, set them with --shape, --input-data, or --input "
    "NAME=range:LOW:HIGH."
)


def extended(
    result: LevelResult, connected: ConnectedModel, address: str, load: Load, measured: MeasuredLevel
) -> LevelResult:
    """Return a level's result with the figures that depend on the kind of model and load."""
    records, rows, duration_ns = load.records, measured.rows, result.duration_ns
    data = connected.requests.data
    good = goodput_figures(measured.sample, measured.settings.goodput)
    result = replace(result, resent=load.resent, goodput=good)
    if data.guesses:
        result = replace(result, guesses=data.guesses, warnings=(*data.guesses, *result.warnings))
    if data.made and result.errors and result.latency is None:
        result = replace(result, reason=f"{result.reason} {GENERATED}")
    if len(records.arrivals):
        result = replace(result, streaming=streaming_figures(records, measured.kept, measured.sample))
    if result.level.kind.open_loop:
        result = replace(result, open_loop=open_loop_figures(rows, duration_ns, load))
    if connected.sequences:
        result = replace(result, sequences=ended_sequences(records, measured.kept, load.unfinished))
    if connected.requests.conversations:
        result = replace(result, sessions=session_figures(rows, connected.requests.conversations))
    if connected.members:
        result = replace(result, members=tuple(_iter_members(connected, measured)))
    latency, settings = result.latency, measured.settings
    sleeps = not (settings.pace.poll == "busy" or settings.with_engine)
    if sleeps and latency is not None and may_dominate(result.level, latency.at(50.0)):
        found = wake_ups(latency.at(50.0), local=is_local(address))
        if found.share >= DOMINANT_SHARE and result.verdict is not Verdict.ERRORS:
            result = replace(result, wake_ups=found, warnings=(*result.warnings, found.warning))
    return result


def open_loop_figures(rows: Rows, duration_ns: int, load: Load) -> OpenLoop | None:
    """Return the figures that only an open loop has; None if no request succeeded."""
    good = succeeded(rows)
    if not len(good):
        return None
    slip = elapsed_ns(rows, "intended_ns", "start_ns")
    return OpenLoop(
        service_latency=summarize(elapsed_ns(good, "start_ns", "end_ns")),
        slip=summarize(slip),
        delayed=int(np.count_nonzero(slip > LATE_NS)),
        sent_per_s=len(rows) * 1e9 / max(duration_ns, 1),
        skipped=load.skipped,
        connections=load.connections,
    )


def session_figures(rows: Rows, conversations: Sequence[Conversation]) -> Sessions:
    """Count finished conversations and unsent turns. Every turn that was due has a row."""
    last = [turns[-1].step for turns in conversations]
    return Sessions(
        total=len(conversations),
        finished=int(np.isin(last, succeeded(rows)["step"]).sum()),
        unsent_turns=sum(map(len, conversations)) - len(rows),
    )


def streaming_figures(records: Records, kept: range, sample: Sample) -> Streaming | None:
    """Return the figures of the successful requests in `kept`, of which `sample` is made.

    None if none had a response.
    """
    rows, times = records.between(kept.start, kept.stop), response_times(records, kept)
    duration_ns = max(sample.end_ns - sample.start_ns, 1)
    good = rows["status"] == SUCCESS
    if not (good & (rows["responses"] > 0)).any():
        return None
    # exclude failed requests: they may have had responses before they failed
    responses = len(times.only(good).times_ns)
    counted = select_rows(rows, good)
    units = int(counted["units"].sum())
    return Streaming(
        responses=responses,
        responses_per_s=responses * 1e9 / duration_ns,
        figures=stream_figures(sample, rows, times),
        spans=request_spans(rows, times) if units else (),
        units=units,
        units_per_s=units * 1e9 / duration_ns,
        prompt_units=int(counted["prompt_units"].sum()),
        cached_units=int(counted["cached_units"].sum()),
        reasoning_units=int(counted["reasoning_units"].sum()),
    )


def ended_sequences(records: Records, kept: range, cut_short: Set[int]) -> int:
    """Return the number of sequences whose last request is in `kept` and that were not `cut_short`."""
    column = records.since(0)["sequence"]
    last, found = np.unique(column[::-1], return_index=True)
    at = len(column) - 1 - found
    inside = (at >= kept.start) & (at < kept.stop) & (last != 0)
    return int(np.count_nonzero(inside & ~np.isin(last, list(cut_short))))


def _iter_members(connected: ConnectedModel, measured: MeasuredLevel) -> Iterator[MemberFigures]:
    """Yield the share of each model when several are measured at once."""
    for number, (share, statistics) in enumerate(connected.members):
        rows = measured.rows[measured.rows["step"] >> MODEL_SHIFT == number]
        good = succeeded(rows)
        per_s = len(good) * measured.batch_size * 1e9 / max(measured.merged.duration_ns, 1)
        yield MemberFigures(
            model=share.name,
            weight=share.weight,
            requests=len(good),
            failed=len(rows) - len(good),
            throughput_infer_per_s=per_s,
            latency=summarize(elapsed_ns(good, "intended_ns", "end_ns")) if len(good) else None,
            server=statistics.between(measured.first.server, measured.last.server),
        )
