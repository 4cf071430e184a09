"""The books of one level: its windows, how it stands after each, and its result; no clock and no network."""

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tpx.perf.clients.base import Failure
from tpx.perf.doubts import Evidence, doubts
from tpx.perf.estimates import Sample, assess, estimate, joined, sample_of
from tpx.perf.levels import Level
from tpx.perf.objectives import Assessment, Outcome
from tpx.perf.recording import LevelRecords
from tpx.perf.records import SUCCESS, Records, Rows
from tpx.perf.results import ClientCheck, ErrorCount, LevelResult, ServerBreakdown, Verdict, Window
from tpx.perf.rules import LOOK_GROWTH, Standing, rule_for
from tpx.perf.self_check import client_bound, slip_p99_ns
from tpx.perf.server_statistics import Snapshot
from tpx.perf.settings import LevelSettings
from tpx.perf.stability import STABILITY_WINDOWS
from tpx.perf.verdict import Findings, is_dead, judge
from tpx.perf.windows import (
    Mark,
    WindowRules,
    busy_between,
    client_times,
    index_after,
    rows_between,
    window_between,
)

log = logging.getLogger(__name__)
Between = Callable[[Snapshot | None, Snapshot | None], ServerBreakdown | None]
"""The server's own account of the time between two readings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a level ended, known only to who ran it."""

    failures: Mapping[int, Failure]
    failed: int
    interrupted: bool
    lost: str = ""
    """Why nothing more was waited for; empty where requests succeeded to the end."""
    loop_lag_p99_ns: int = 0


class LevelLedger:
    """Cuts the records of a level into windows, at the marks that it is given."""

    def __init__(self, records: Records, settings: LevelSettings, level: Level, batch_size: int) -> None:
        self._records = records
        self._settings = settings
        self._level = level
        self._rules = WindowRules(
            batch_size=batch_size, percentile=settings.percentile, clamped=settings.request_count > 0
        )
        self._rule = rule_for(settings)
        self._marks: list[Mark] = []
        self._samples: list[Sample] = []
        self.windows: list[Window] = []
        self._standing = Standing(kept=0, stable=False)
        self._next_look = STABILITY_WINDOWS
        self._seen: list[Outcome] = []
        self._outcomes = [Outcome.UNDECIDED for _ in settings.objectives]

    @property
    def last_mark(self) -> Mark:
        return self._marks[-1]

    def begin(self, mark: Mark) -> None:
        """The first border."""
        self._marks.append(mark)

    def index_at(self, end_ns: int) -> int:
        """The first record behind a border at that time."""
        return index_after(self._records, self._marks[-1].index, end_ns)

    def close(self, mark: Mark) -> None:
        """The end of a window."""
        first = self._marks[-1]
        self._marks.append(mark)
        window = window_between(self._records, first, mark, self._rules)
        self.windows.append(window)
        rows = rows_between(self._records, first, mark)
        self._samples.append(sample_of(rows, window.start_ns, window.end_ns))
        self._standing = self._rule.standing(self.windows, self._samples)
        log.debug("%s, window %d: %s", self._level, len(self.windows), _told(window))

    @property
    def done(self) -> bool:
        """Whether the level needs no further window: it is stable, and its objectives and its latency limit
        are settled; or one of these is broken, it is dead, or has had all its windows."""
        settings, windows = self._settings, self.windows
        if settings.request_count or len(windows) >= settings.max_windows or is_dead(windows[-1]):
            return True
        if len(windows) < STABILITY_WINDOWS:
            return False
        outcomes = self._settled_outcomes()
        if self._standing.limit is not None:
            outcomes = [*outcomes, self._standing.limit.outcome]
        if Outcome.BROKEN in outcomes:
            return True
        return self._standing.stable and Outcome.UNDECIDED not in outcomes

    def _settled_outcomes(self) -> list[Outcome]:
        """What is settled of each objective: a verdict that two looks in a row agree on.

        Asking at every window would sooner or later be answered by chance, so looks are few.
        """
        if not self._settings.objectives or len(self.windows) < self._next_look:
            return self._outcomes
        self._next_look = math.ceil(len(self.windows) * LOOK_GROWTH)
        before, self._seen = self._seen, [a.outcome for a in self._assessments()]
        self._outcomes = [
            now if now is then else Outcome.UNDECIDED
            for now, then in zip(self._seen, before or [Outcome.UNDECIDED] * len(self._seen), strict=True)
        ]
        return self._outcomes

    def result(self, between: Between, ending: Ending) -> LevelResult:
        """The level's figures, verdict and doubts."""
        standing, records = self._standing, self._records
        first, last = self._marks[-1 - standing.kept], self._marks[-1]
        merged = window_between(records, first, last, self._rules)
        rows = rows_between(records, first, last)
        errors = self._errors(ending.failures)
        over_budget = self._settings.max_errors.exceeded(failed=ending.failed, sent=len(records))
        check = ClientCheck(
            cpu_share=busy_between(first, last),
            loop_lag_p99_ns=ending.loop_lag_p99_ns,
            slip_p99_ns=slip_p99_ns(rows),
        )
        server = between(first.server, last.server)
        in_flight = float((rows["end_ns"] - rows["start_ns"]).sum()) / max(merged.duration_ns, 1)
        findings = Findings(
            windows=self.windows,
            merged=merged,
            errors=errors,
            stable=standing.stable,
            moved=standing.moved,
            limit=standing.limit,
            over_budget=over_budget,
            lost=ending.lost,
            interrupted=ending.interrupted,
            client_bound=self._client_bound(check, merged),
        )
        judgement = judge(self._level, findings, self._settings)
        # what fails for a while contradicts everything, which its errors say better
        dead = judgement.verdict is Verdict.ERRORS
        evidence = Evidence(
            level=self._level,
            requests=merged.requests,
            failed=merged.failed,
            batch_size=self._rules.batch_size,
            in_flight=in_flight,
            server=server,
            check=check,
            counted_run=self._settings.request_count > 0,
            polls=self._settings.poll == "busy",
        )
        return LevelResult(
            level=self._level,
            batch_size=self._rules.batch_size,
            verdict=judgement.verdict,
            stable=judgement.stable,
            interrupted=ending.interrupted,
            over_budget=over_budget,
            reason=judgement.reason,
            percentile=self._settings.percentile,
            windows=tuple(self.windows),
            requests=merged.requests,
            duration_ns=merged.duration_ns,
            throughput_infer_per_s=merged.throughput_infer_per_s,
            latency=merged.latency,
            client=client_times(rows),
            client_busy=check.cpu_share,
            server=server,
            failed=sum(e.count for e in errors),
            errors=errors,
            kept_windows=standing.kept,
            warmup_windows=standing.warmup,
            estimates=estimate(self._kept_sample(merged), self._rules.batch_size, self._settings.percentile),
            in_flight=in_flight,
            client_check=check,
            warnings=() if dead else (*filter(None, [standing.warning]), *doubts(evidence)),
            slo=self._assessments(),
        )

    def records(self, failures: Mapping[int, Failure]) -> LevelRecords:
        """The requests of all windows, for whoever writes them down."""
        return LevelRecords(
            level=self._level,
            records=self._records,
            borders_ns=tuple(mark.time_ns for mark in self._marks),
            indices=tuple(mark.index for mark in self._marks),
            failures=failures,
        )

    def _client_bound(self, check: ClientCheck, merged: Window) -> str:
        if merged.latency is None or self._settings.with_engine or self._settings.poll == "busy":
            return ""
        return client_bound(check, merged.latency.at(50.0))

    def last_server(self, between: Between) -> ServerBreakdown | None:
        """The server's own account of the last window that is over; None before there is one."""
        if len(self._marks) < 2:
            return None
        return between(self._marks[-2].server, self._marks[-1].server)

    def kept_span_ns(self) -> tuple[int, int]:
        """From when to when the windows lasted that the figures are made of."""
        return self._marks[-1 - self._standing.kept].time_ns, self._marks[-1].time_ns

    def kept_readings(self) -> tuple[Snapshot | None, Snapshot | None]:
        """The server's counters before and behind what the figures are made of."""
        return self._marks[-1 - self._standing.kept].server, self._marks[-1].server

    def kept_rows(self) -> Rows:
        """The records that the figures are made of."""
        return rows_between(self._records, self._marks[-1 - self._standing.kept], self._marks[-1])

    def kept_index(self) -> range:
        """Their numbers."""
        return range(self._marks[-1 - self._standing.kept].index, self._marks[-1].index)

    def _kept_sample(self, merged: Window) -> Sample:
        sample = joined(self._samples[-self._standing.kept :])
        if not self._rules.clamped:
            return sample
        return Sample(
            start_ns=merged.start_ns,
            end_ns=merged.end_ns,
            ends=sample.ends,
            latencies=sample.latencies,
            ok=sample.ok,
        )

    def _assessments(self) -> tuple[Assessment, ...]:
        settings = self._settings
        if not settings.objectives:
            return ()
        kept = joined(self._samples[-self._standing.kept :])
        return assess(settings.objectives, kept, self._rules.batch_size, settings.safety)

    def _errors(self, failures: Mapping[int, Failure]) -> tuple[ErrorCount, ...]:
        """The kinds of failure in all windows, the most frequent first."""
        rows = rows_between(self._records, self._marks[0], self._marks[-1])
        counts = Counter(rows["status"][rows["status"] != SUCCESS].tolist())
        kinds = [
            ErrorCount(code=failures[s].code, count=count, message=failures[s].message)
            for s, count in sorted(counts.items())
            if s in failures
        ]
        return tuple(sorted(kinds, key=lambda e: -e.count))


def _told(window: Window) -> str:
    """A window in a line, for whoever watches every step."""
    took = f"{window.duration_ns / 1e9:.3f} s, {window.requests} requests, {window.failed} failed"
    if window.latency is None:
        return took
    mean, p50, p99 = (ns / 1000 for ns in (window.latency.mean_ns, *map(window.latency.at, (50.0, 99.0))))
    return (
        f"{took}, {window.throughput_infer_per_s:.6g} infer/sec, mean {mean:.1f} usec, p50 {p50:.1f} usec, "
        f"p99 {p99:.1f} usec, client busy {window.client_busy * 100:.0f}%"
    )
