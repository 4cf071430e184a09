"""Windows of a level: which requests belong to one, when one ends, and what it says.

A request belongs to the window in which its END lies; its latency counts from when it should have been sent,
which in a closed loop is when it was. Windows are back to back, and a level's figures are
those of its last three windows taken as one, which equals perf_analyzer's merge of their sums.
"""

import time
from collections.abc import Set
from dataclasses import dataclass
from time import perf_counter_ns

import numpy as np

from tpx.perf.latency import LatencySummary, summarize
from tpx.perf.records import SUCCESS, Records, Rows, succeeded
from tpx.perf.results import ClientTimes, Window
from tpx.perf.server_statistics import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A boundary between windows: its time, the first record behind it, and readings taken there."""

    time_ns: int
    index: int
    server: Snapshot | None
    cpu_ns: int
    """Processor time of what sends the requests, read at `read_ns`."""
    read_ns: int


def mark(time_ns: int, index: int, server: Snapshot | None, processor_ns: int | None = None) -> Mark:
    """A boundary at `time_ns`, with the readings of this moment; the processor time is this thread's unless
    others send the requests."""
    cpu_ns = time.thread_time_ns() if processor_ns is None else processor_ns
    return Mark(time_ns=time_ns, index=index, server=server, cpu_ns=cpu_ns, read_ns=perf_counter_ns())


def index_after(records: Records, since: int, time_ns: int) -> int:
    """The first record, from `since` on, that ended after `time_ns`; those behind it belong to what
    follows."""
    ends = np.maximum.accumulate(records.since(since)["end_ns"])
    return since + int(np.searchsorted(ends, time_ns, side="right"))


def rows_between(records: Records, first: Mark, last: Mark) -> Rows:
    """The records of the windows between two marks."""
    return records.since(first.index)[: last.index - first.index]


def ended_sequences(records: Records, numbers: range, unfinished: Set[int]) -> int:
    """How many sequences had their last request among some rows; `unfinished` were ended early, behind all
    rows."""
    column = records.since(0)["sequence"]
    last, found = np.unique(column[::-1], return_index=True)
    at = len(column) - 1 - found
    inside = (at >= numbers.start) & (at < numbers.stop) & (last != 0)
    return int(np.count_nonzero(inside & ~np.isin(last, list(unfinished))))


def full_at(rows: Rows, wanted: int, not_before_ns: int) -> int | None:
    """When a count window is over: `wanted` requests have succeeded, and `not_before_ns` has been reached.

    Returns the END of the request that fulfilled both, or None while there is none.
    """
    successes = np.flatnonzero(rows["status"] == SUCCESS)
    if len(successes) < wanted:
        return None
    ends = np.maximum.accumulate(rows["end_ns"])
    at = max(int(successes[wanted - 1]), int(np.searchsorted(ends, not_before_ns)))
    return int(ends[at]) if at < len(rows) else None


def busy_between(first: Mark, last: Mark) -> float:
    """Share of the time between two marks in which this thread had the processor."""
    return (last.cpu_ns - first.cpu_ns) / max(last.read_ns - first.read_ns, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRules:
    """What a window's figures depend on beside its requests."""

    batch_size: int
    percentile: float | None
    clamped: bool
    """Whether time counts from the first request's start to the last one's end only, as for
    --request-count."""


def window_between(records: Records, first: Mark, last: Mark, rules: WindowRules) -> Window:
    """The windows between two marks as one."""
    rows = rows_between(records, first, last)
    good = succeeded(rows)
    start_ns, end_ns = first.time_ns, last.time_ns
    if rules.clamped and len(rows):
        start_ns, end_ns = int(rows["start_ns"].min()), int(rows["end_ns"].max())
    latency: LatencySummary | None = None
    if len(good):
        latency = summarize(
            good["end_ns"] - good["intended_ns"], () if rules.percentile is None else (rules.percentile,)
        )
    return Window(
        start_ns=start_ns,
        end_ns=end_ns,
        requests=len(good),
        failed=len(rows) - len(good),
        throughput_infer_per_s=len(good) * rules.batch_size * 1e9 / max(end_ns - start_ns, 1),
        latency=latency,
        client_busy=busy_between(first, last),
        stabilizing_percentile=rules.percentile,
    )


def client_times(rows: Rows) -> ClientTimes | None:
    """Mean times of the successful requests; None where there is none."""
    good = succeeded(rows)
    if not len(good):
        return None
    send, receive, total = (
        int((good[later] - good[earlier]).sum()) // len(good)
        for earlier, later in (("start_ns", "sent_ns"), ("first_byte_ns", "end_ns"), ("start_ns", "end_ns"))
    )
    return ClientTimes(send_ns=send, wait_ns=max(0, total - send - receive), receive_ns=receive)
