"""Rules that decide when a level has been measured enough.

A level ends by perf_analyzer's rule over three windows, or when confidence intervals are narrow enough.
With a latency limit, it ends once an interval shows on which side of the limit the latency lies.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tpx.perf.measure.estimates import Estimator, Sample, assess, joined
from tpx.perf.objectives import Assessment, Compliance, Objective
from tpx.perf.results import Window
from tpx.perf.settings import LevelSettings
from tpx.perf.statistics.intervals import Interval, t_quantile
from tpx.protocol.tensors import Array

STABILITY_WINDOWS = 3
"""perf_analyzer's number of windows that must resemble each other."""
GROUP = 5
"""Values that MSER-5 averages before it looks for the steady part: single ones vary too much."""
FEWEST_STEADY = 2
"""Fewest windows that must remain: one has no spread to compare a leading window with."""
SLICES = 20
SLICE_REQUESTS = 5
"""Warm-up is detected in slices of a window, each with at least this many requests on average."""
LATENCY_MOVES = "Request latency is not stabilizing. Please try lowering the request rate."
"""perf_analyzer's message for a level of which only the throughput is stable."""
SURE = 0.9999
"""Confidence at which one look settles a latency limit, instead of two looks in a row.

Also the confidence at which a leading window must differ from the rest to count as warm-up.
"""
LOOK_GROWTH = 1.25
"""Growth of the number of windows from one look at the confidence intervals to the next.

On three simulated queues the intervals of the mean held the truth in 94 to 96 of 100 runs, those of p90 in 96
to 97; with a look at each window in 92 to 96, and 93 to 96.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelStatus:
    """The status of a level after its windows so far.

    Its figures are those of the last `kept` windows; the first `warmup` windows are left out as
    warm-up. `moved` says why the level is not stable.
    """

    kept: int
    warmup: int = 0
    stable: bool
    moved: str = ""
    warning: str = ""
    """Reason to doubt a stable level."""
    limit: Assessment | None = None
    """Assessment of the latency limit, UNDECIDED until it is settled; None without a limit."""


class StabilityRule(ABC):
    """Decides the status of a level; the subclasses are the rules."""

    def __init__(self, settings: LevelSettings) -> None:
        self._settings = settings
        self._tolerance = settings.stability

    @abstractmethod
    def status(self, windows: Sequence[Window], samples: Sequence[Sample]) -> LevelStatus:
        """Return the status after at least one window; `samples` are those of the windows."""


def rule_for(settings: LevelSettings) -> StabilityRule:
    """Return the rule that the settings select."""
    counted = settings.request_count or settings.fixed_windows
    kinds: dict[str, Callable[[LevelSettings], StabilityRule]]
    kinds = {"ci": Precision, "pa": ThreeWindows, "brief": Brief}
    rule = AllWindows(settings) if counted else kinds[settings.rule](settings)
    limit = settings.latency_limit
    return rule if limit is None else LatencyLimit(rule, limit, settings)


class AllWindows(StabilityRule):
    """The rule of a counted run or one of so many windows: they are the level, if any request succeeded."""

    def status(self, windows: Sequence[Window], samples: Sequence[Sample]) -> LevelStatus:  # noqa: ARG002
        return LevelStatus(kept=len(windows), stable=all(w.latency is not None for w in windows))


class Brief(StabilityRule):
    """The rule of a trial that is repeated only if it is among the best.

    The 95% CI of throughput must reach at most half of the tolerance to either side, which usually
    takes one window.
    """

    def status(self, windows: Sequence[Window], samples: Sequence[Sample]) -> LevelStatus:
        if any(w.latency is None for w in windows):
            return LevelStatus(kept=1, stable=False, moved="a window had no valid request")
        throughput, limit = Estimator(joined(samples)).throughput(1), self._tolerance / 2
        return LevelStatus(
            kept=len(windows),
            stable=throughput.within(limit),
            moved=f"throughput is known to {_format_half_width(throughput)}, +-{limit * 100:g}% is wanted",
        )


class ThreeWindows(StabilityRule):
    """perf_analyzer's rule: the last three windows resemble each other.

    With asynchronous calls a stable throughput suffices at the last window. A level with objectives or
    a latency limit may continue after three similar windows: its figures are then those of all windows
    after the warm-up, because windows that only replaced earlier ones would never settle an objective.
    """

    def __init__(self, settings: LevelSettings) -> None:
        super().__init__(settings)
        self._content_at = settings.max_windows if settings.asynchronous else 0
        self._accumulates = settings.latency_limit is not None or bool(settings.objectives)
        self._was_stable = False

    def status(self, windows: Sequence[Window], samples: Sequence[Sample]) -> LevelStatus:
        count, stable = len(windows), is_stable(windows, self._tolerance)
        moved = f"{STABILITY_WINDOWS} windows are needed, there were {count}"
        if count >= STABILITY_WINDOWS:
            moved = describe_spread(windows)
        warning = ""
        if not stable and 0 < self._content_at <= count:
            stable = is_stable(windows, self._tolerance, latency=False)
            warning = LATENCY_MOVES if stable else ""
        kept = min(count, STABILITY_WINDOWS)
        warmup = 0
        if self._accumulates and count > STABILITY_WINDOWS:
            stable = stable or self._was_stable
            warmup = leading_warmup(windows, samples, self._tolerance)
            kept = count - warmup
        self._was_stable = stable
        return LevelStatus(kept=kept, warmup=warmup, stable=stable, moved=moved, warning=warning)


class Precision(StabilityRule):
    """The rule that the 95% CIs of all windows after the warm-up are narrow enough.

    The intervals of throughput and of the stabilizing latency must reach at most half of the tolerance
    to either side.

    A level that stops the first time its intervals are narrow was selected for looking steady, so its
    intervals would cover the truth less often than they claim. So looks are rare, each needs
    considerably more windows than the last, and two in a row have to find the intervals narrow.
    """

    def __init__(self, settings: LevelSettings) -> None:
        super().__init__(settings)
        self._next_look = STABILITY_WINDOWS
        self._narrow = False
        self._found = LevelStatus(kept=0, stable=False, moved=f"{STABILITY_WINDOWS} windows are needed")

    def status(self, windows: Sequence[Window], samples: Sequence[Sample]) -> LevelStatus:
        count = len(windows)
        if count - self._found.warmup < self._next_look and count < self._settings.max_windows:
            return replace(self._found, kept=count - self._found.warmup)
        warmup = leading_warmup(windows, samples, self._tolerance)
        kept = count - warmup
        if kept < STABILITY_WINDOWS or any(w.latency is None for w in windows[warmup:]):
            moved = f"{STABILITY_WINDOWS} steady windows are needed, there were {kept}"
            self._found = LevelStatus(kept=kept, warmup=warmup, stable=False, moved=moved)
        else:
            self._found = self._evaluate_sample(kept, warmup, joined(samples[warmup:]))
            if count == self._settings.max_windows:
                # this look is due whatever the figures are, so it counts alone and biases nothing
                self._found = replace(self._found, stable=self._narrow)
        return self._found

    def _evaluate_sample(self, kept: int, warmup: int, sample: Sample) -> LevelStatus:
        estimator = Estimator(sample)
        throughput = estimator.throughput(1)
        latency = estimator.latency(self._settings.percentile).interval
        limit = self._tolerance / 2
        before, self._narrow = self._narrow, throughput.within(limit) and latency.within(limit)
        self._next_look = math.ceil(kept * LOOK_GROWTH)
        return LevelStatus(
            kept=kept,
            warmup=warmup,
            stable=before and self._narrow,
            moved=f"throughput is known to {_format_half_width(throughput)}, "
            f"latency to {_format_half_width(latency)}; +-{limit * 100:g}% are wanted",
        )


class LatencyLimit(StabilityRule):
    """Another rule, plus the side of the latency limit on which the level
    lies.

    The latency interval must lie on one side at two looks in a row, or at one look with confidence
    SURE. The last look counts alone, because it is due whatever the figures are.
    """

    def __init__(self, rule: StabilityRule, limit: Objective, settings: LevelSettings) -> None:
        super().__init__(settings)
        self._rule = rule
        self._limit = limit
        self._last = 1 if settings.request_count else settings.fixed_windows or settings.max_windows
        self._before = Compliance.UNDECIDED

    def status(self, windows: Sequence[Window], samples: Sequence[Sample]) -> LevelStatus:
        found = self._rule.status(windows, samples)
        if len(windows) < min(STABILITY_WINDOWS, self._last):
            return found
        last = len(windows) >= self._last
        return replace(found, limit=self._evaluate_sample(joined(samples[-found.kept :]), last=last))

    def _evaluate_sample(self, sample: Sample, *, last: bool) -> Assessment:
        (surely,) = assess((self._limit,), sample, 1, SURE)
        if surely.outcome is not Compliance.UNDECIDED:
            return surely
        (now,) = assess((self._limit,), sample, 1, self._settings.safety)
        before, self._before = self._before, now.outcome
        return now if last or now.outcome is before else replace(now, outcome=Compliance.UNDECIDED)


def is_stable(windows: Sequence[Window], tolerance: float, *, latency: bool = True) -> bool:
    """Return True if throughput and latency of the last three windows vary by at most 1 + `tolerance`.

    Without `latency`, only throughput counts.

    perf_analyzer: inference_profiler.cc, DetermineStability (maximum over minimum, not a deviation from
    the average as its documentation says).
    """
    last = windows[-STABILITY_WINDOWS:]
    if len(last) < STABILITY_WINDOWS or any(w.latency is None for w in last):
        return False
    if _compute_spread([w.throughput_infer_per_s for w in last]) > 1 + tolerance:
        return False
    return not latency or _compute_spread([w.latency_ns for w in last]) <= 1 + tolerance


def describe_spread(windows: Sequence[Window]) -> str:
    """Describe the variation of the last three windows: `throughput moved by 12.1%, latency by 3.0%`."""
    last = [w for w in windows[-STABILITY_WINDOWS:] if w.latency is not None]
    if len(last) < STABILITY_WINDOWS:
        return (
            f"only {len(last)} of the last {min(len(windows), STABILITY_WINDOWS)} windows had valid requests"
        )
    throughput = (_compute_spread([w.throughput_infer_per_s for w in last]) - 1) * 100
    latency = (_compute_spread([w.latency_ns for w in last]) - 1) * 100
    return f"throughput moved by {throughput:.1f}%, latency by {latency:.1f}%"


def _compute_spread(values: Sequence[float]) -> float:
    return max(values) / max(min(values), 1e-9)


def leading_warmup(windows: Sequence[Window], samples: Sequence[Sample], tolerance: float) -> int:
    """Return the number of leading warm-up windows; 0 while there are too few windows to tell."""
    if len(windows) <= STABILITY_WINDOWS or any(w.latency is None for w in windows):
        return 0
    slices = max(1, min(SLICES, min(w.requests for w in windows) // SLICE_REQUESTS))
    figures = [
        [w.throughput_infer_per_s for w in windows],
        [float(w.latency.mean_ns) for w in windows if w.latency is not None],
    ]
    series = zip(*(_slice_window(s, slices) for s in samples), strict=True)
    starts = [steady_from(np.concatenate(parts)) / slices for parts in series]
    return min(warm_windows(figures, starts, tolerance / 2), len(windows) // 2)


def _format_half_width(interval: Interval) -> str:
    if interval.high is None:
        return "no upper end (too few requests)"
    return f"+-{interval.half_width / max(interval.value, 1e-9) * 100:.1f}%"


def _slice_window(sample: Sample, slices: int) -> tuple[Array, Array]:
    """Return successes and mean latency per slice of a window; an empty slice gets the window's mean."""
    span = max(sample.end_ns - sample.start_ns, 1)
    place = np.clip((sample.ends[sample.ok] - sample.start_ns) * slices // span, 0, slices - 1)
    good = sample.good
    counts = np.bincount(place.astype(np.int64), minlength=slices)
    sums = np.bincount(place.astype(np.int64), weights=good, minlength=slices)
    means = np.where(counts > 0, sums / np.maximum(counts, 1), good.mean())
    return counts.astype(np.float64), means


def steady_from(values: Array) -> int:
    """Return the index at which the steady part begins: a multiple of five, at most the middle.

    MSER-5 truncates a beginning that only widens the error of the mean: K. P. White, "An effective
    truncation heuristic for bias reduction in simulation output", Simulation 69, 1997.
    """
    groups = len(values) // GROUP
    if groups < 2:
        return 0
    means = values[: groups * GROUP].reshape(groups, GROUP).mean(axis=1)
    left = np.arange(groups, 0, -1)
    sums = np.cumsum(means[::-1])[::-1]
    squares = np.cumsum(np.square(means)[::-1])[::-1]
    spread = np.maximum(squares - sums**2 / left, 0.0) / left**2
    return int(np.argmin(spread[: groups // 2 + 1])) * GROUP


def warm_windows(figures: Sequence[Sequence[float]], starts: Sequence[float], tolerance: float) -> int:
    """Return the number of leading warm-up windows.

    `figures` has one sequence of per-window values for each quantity; `starts` says, in windows, where
    each quantity becomes steady. A window is dropped if most of it lies before that and its value
    differs from the mean of the remaining ones by more than `tolerance` (such as 0.05) and by more than
    their own variation explains. Windows that differ only by chance must stay, or the mean would be
    biased by selection.
    """
    most = 0
    for values, start in zip(figures, starts, strict=True):
        for count in range(min(round(start), len(values) - FEWEST_STEADY), most, -1):
            steady = np.asarray(values[count:])
            mean, spread = float(steady.mean()), float(steady.std(ddof=1))
            # half-width of the prediction interval for one more window like the steady ones
            chance = t_quantile(0.5 + SURE / 2, len(steady) - 1) * spread * math.sqrt(1 + 1 / len(steady))
            if abs(values[count - 1] - mean) > max(tolerance * abs(mean), chance):
                most = count
                break
    return most
