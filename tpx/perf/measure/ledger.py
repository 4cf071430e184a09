"""The records of one level: its windows, its status after each, and its figures; no clock, no network.

A request belongs to the window in which it ENDS; its latency counts from its intended start. A level's
figures are computed over its last windows as one interval: perf_analyzer's merge of their sums.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tpx.perf.clients.base import Failure
from tpx.perf.clients.model import Snapshot
from tpx.perf.levels import Level
from tpx.perf.measure.estimates import Sample, assess, joined, sample_of
from tpx.perf.measure.rules import LOOK_GROWTH, STABILITY_WINDOWS, LevelStatus, rule_for
from tpx.perf.measure.streams import figures_of, goodput
from tpx.perf.objectives import Assessment, Compliance
from tpx.perf.records import SUCCESS, Records, Rows, elapsed_ns, succeeded
from tpx.perf.results import ClientCheck, ClientTimes, ErrorCount, ServerBreakdown, Window
from tpx.perf.settings import LevelSettings
from tpx.perf.statistics.summaries import rank, summarize
from tpx.protocol.tensors import Array

log = logging.getLogger(__name__)
Between = Callable[[Snapshot | None, Snapshot | None], ServerBreakdown | None]
"""Returns the server's own statistics between two readings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowBorder:
    """A boundary between windows: its time, the first record after it, and readings taken there."""

    time_ns: int
    index: int
    server: Snapshot | None
    cpu_ns: int
    """CPU time of the sending process or processes, read at `read_ns`."""
    read_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The end of a level, as reported by the code that ran it."""

    failures: Mapping[int, Failure]
    failed: int
    interrupted: bool
    lost: str = ""
    """Reason why waiting was given up; empty if requests succeeded to the end."""
    loop_lag_p99_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredLevel:
    """A finished level: everything that its result is built from.

    The figures are those of `rows`, the records of the last `status.kept` windows; `merged` and
    `sample` are summaries of them.
    """

    level: Level
    settings: LevelSettings
    batch_size: int
    """Inferences per row."""
    records: Records
    borders: tuple[WindowBorder, ...]
    windows: tuple[Window, ...]
    status: LevelStatus
    merged: Window
    rows: Rows
    sample: Sample
    ending: Ending
    errors: tuple[ErrorCount, ...]
    """Kinds of failure over all windows, the most frequent first."""
    server: ServerBreakdown | None
    check: ClientCheck
    slo: tuple[Assessment, ...]

    @property
    def first(self) -> WindowBorder:
        return self.borders[-1 - self.status.kept]

    @property
    def last(self) -> WindowBorder:
        return self.borders[-1]

    @property
    def failed(self) -> int:
        """Failed requests over all windows."""
        return sum(error.count for error in self.errors)

    @property
    def kept(self) -> range:
        """Numbers of `rows` among the records."""
        return range(self.first.index, self.last.index)

    @property
    def over_budget(self) -> bool:
        return self.settings.max_errors.exceeded(failed=self.ending.failed, sent=len(self.records))

    @property
    def in_flight(self) -> float:
        """Average number of requests in flight: completion rate times service time (Little's law)."""
        return float(elapsed_ns(self.rows, "start_ns", "end_ns").sum()) / max(self.merged.duration_ns, 1)


class LevelLedger:
    """Cuts the records of a level into windows at given borders."""

    def __init__(self, records: Records, settings: LevelSettings, level: Level, batch_size: int) -> None:
        self._records = records
        self.settings = settings
        self._level = level
        self._batch_size = batch_size
        self._rule = rule_for(settings)
        self.borders: list[WindowBorder] = []
        self._samples: list[Sample] = []
        self.windows: list[Window] = []
        self._status = LevelStatus(kept=0, stable=False)
        self._next_look = STABILITY_WINDOWS
        self._outcomes = self._seen = [Compliance.UNDECIDED for _ in settings.objectives]

    def begin(self, border: WindowBorder) -> None:
        """Set the first border, before which nothing counts."""
        self.borders = [border]

    def index_at(self, end_ns: int) -> int:
        """Return the index of the first record after a border at `end_ns`."""
        return index_after(self._records, self.borders[-1].index, end_ns)

    def close(self, border: WindowBorder) -> None:
        """Close the current window at `border`."""
        first = self.borders[-1]
        self.borders.append(border)
        sample = self._take_sample(first, border)
        window = self._build_window(first, border, sample)
        self.windows.append(window)
        self._samples.append(sample)
        self._status = self._rule.status(self.windows, self._samples)
        log.debug("%s, window %d: %s", self._level, len(self.windows), _describe_window(window))

    @property
    def done(self) -> bool:
        """True if the level needs no further window.

        Either it is stable and its objectives and latency limit are settled, or one of these is
        violated, the level is dead, or it has had all its windows.
        """
        settings, windows = self.settings, self.windows
        most = 1 if settings.request_count else settings.fixed_windows or settings.max_windows
        if len(windows) >= most or windows[-1].dead:
            return True
        if settings.fixed_windows or (len(windows) < STABILITY_WINDOWS and settings.rule != "brief"):
            return False
        outcomes = self._settle_outcomes()
        if self._status.limit is not None:
            outcomes = [*outcomes, self._status.limit.outcome]
        if Compliance.VIOLATED in outcomes:
            return True
        return self._status.stable and Compliance.UNDECIDED not in outcomes

    def _settle_outcomes(self) -> list[Compliance]:
        """Return the settled outcome of each objective: one on which two looks in a row agree.

        Looks are rare, because with a look at every window chance alone would eventually settle an
        objective.
        """
        if not self.settings.objectives or len(self.windows) < self._next_look:
            return self._outcomes
        self._next_look = math.ceil(len(self.windows) * LOOK_GROWTH)
        before, self._seen = self._seen, [a.outcome for a in self._assess_objectives()]
        pairs = zip(self._seen, before, strict=True)
        self._outcomes = [now if now is then else Compliance.UNDECIDED for now, then in pairs]
        return self._outcomes

    @property
    def first_kept(self) -> WindowBorder:
        """Start of the windows that the figures are computed over."""
        return self.borders[-1 - self._status.kept]

    def measured(self, between: Between, ending: Ending) -> MeasuredLevel:
        """Return the finished level. Call it after `close`; nothing may follow."""
        first, last = self.first_kept, self.borders[-1]
        rows = self._records.between(first.index, last.index)
        sample = joined(self._samples[-self._status.kept :])
        merged = self._build_window(first, last, sample)
        status = self._records.between(self.borders[0].index, last.index)["status"]
        kinds = [
            ErrorCount(code=ending.failures[s].code, count=count, message=ending.failures[s].message)
            for s, count in sorted(Counter(status[status != SUCCESS].tolist()).items())
            if s in ending.failures
        ]
        return MeasuredLevel(
            level=self._level,
            settings=self.settings,
            batch_size=self._batch_size,
            records=self._records,
            borders=tuple(self.borders),
            windows=tuple(self.windows),
            status=self._status,
            merged=merged,
            rows=rows,
            sample=sample,
            ending=ending,
            errors=tuple(sorted(kinds, key=lambda e: -e.count)),
            server=between(first.server, last.server),
            check=ClientCheck(
                cpu_share=merged.client_busy,
                loop_lag_p99_ns=ending.loop_lag_p99_ns,
                slip_p99_ns=p99(elapsed_ns(rows, "intended_ns", "start_ns")),
            ),
            slo=self._assess_objectives(),
        )

    def _take_sample(self, first: WindowBorder, last: WindowBorder) -> Sample:
        """Return the requests between two borders. With a fixed request count, the interval is from the first
        request's start to the last one's end.
        """
        # by block: the columns of one stay in the processor's cache, and its rows need not be copied
        parts = list(self._records.parts(first.index, last.index)) or [self._records.between(0, 0)]
        start_ns, end_ns = first.time_ns, last.time_ns
        if self.settings.request_count and len(parts[0]):
            start_ns = min(int(rows["start_ns"].min()) for rows in parts)
            end_ns = max(int(rows["end_ns"].max()) for rows in parts)
        sample = joined([sample_of(rows, start_ns, end_ns) for rows in parts])
        if not self.settings.streamed:
            return sample
        return replace(sample, figures=figures_of(self._records, range(first.index, last.index)))

    def _build_window(self, first: WindowBorder, last: WindowBorder, sample: Sample) -> Window:
        """Return the interval between two borders as one window."""
        good, percentile = sample.good, self.settings.percentile
        extra = () if percentile is None else (percentile,)
        took_ns = max(sample.end_ns - sample.start_ns, 1)
        return Window(
            start_ns=sample.start_ns,
            end_ns=sample.end_ns,
            requests=len(good),
            failed=len(sample.ok) - len(good),
            throughput_infer_per_s=len(good) * self._batch_size * 1e9 / took_ns,
            latency=summarize(good, extra) if len(good) else None,
            client_busy=(last.cpu_ns - first.cpu_ns) / max(last.read_ns - first.read_ns, 1),
            stabilizing_percentile=percentile,
        )

    def _assess_objectives(self) -> tuple[Assessment, ...]:
        settings = self.settings
        if not settings.objectives:
            return ()
        kept = joined(self._samples[-self._status.kept :])
        good = goodput(kept, settings.goodput) if settings.goodput else None
        return assess(settings.objectives, kept, self._batch_size, settings.safety, good)


def index_after(records: Records, since: int, time_ns: int) -> int:
    """Return the index of the first record from `since` on that ended after `time_ns`."""
    index = since
    for rows in records.parts(since, len(records)):
        later = rows["end_ns"] > time_ns
        if later.any():
            return index + int(later.argmax())
        index += len(rows)
    return index


def full_at(rows: Rows, wanted: int, not_before_ns: int) -> int | None:
    """Return the time at which a count window is over, or None while it is not.

    The window ends with the END of the request by which `wanted` requests have succeeded and
    `not_before_ns` has been reached.
    """
    successes = np.flatnonzero(rows["status"] == SUCCESS)
    if len(successes) < wanted:
        return None
    ends = np.maximum.accumulate(rows["end_ns"])
    at = max(int(successes[wanted - 1]), int(np.searchsorted(ends, not_before_ns)))
    return int(ends[at]) if at < len(rows) else None


def client_times(rows: Rows) -> ClientTimes | None:
    """Return mean times of the successful requests; None if there is none."""
    good = succeeded(rows)
    if not len(good):
        return None
    send, receive, total = (
        int(elapsed_ns(good, earlier, later).sum()) // len(good)
        for earlier, later in (("start_ns", "sent_ns"), ("first_byte_ns", "end_ns"), ("start_ns", "end_ns"))
    )
    return ClientTimes(send_ns=send, wait_ns=max(0, total - send - receive), receive_ns=receive)


def p99(values: Array) -> int:
    """Return the 99th percentile; 0 of no values. np.quantile would import numpy.ma."""
    if not len(values):
        return 0
    at = rank(99.0, len(values))
    return int(np.partition(values, at)[at])


def _describe_window(window: Window) -> str:
    took = f"{window.duration_ns / 1e9:.3f} s, {window.requests} requests, {window.failed} failed"
    if window.latency is None:
        return took
    mean, p50, high = (ns / 1000 for ns in (window.latency.mean_ns, *map(window.latency.at, (50.0, 99.0))))
    return (
        f"{took}, {window.throughput_infer_per_s:.6g} infer/sec, mean {mean:.1f} usec, p50 {p50:.1f} usec, "
        f"p99 {high:.1f} usec, client busy {window.client_busy * 100:.0f}%"
    )
