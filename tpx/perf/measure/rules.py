"""Rules for when a level has been measured enough: by perf_analyzer's rule over three windows, or when
confidence intervals are narrow enough; and with a latency limit when an interval shows on which side of it
the latency lies."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from tpx.perf.measure.estimates import Estimator, Sample, assess, joined
from tpx.perf.objectives import Assessment, Objective, Outcome
from tpx.perf.results import Window
from tpx.perf.settings import LevelSettings
from tpx.perf.statistics.distributions import t_quantile
from tpx.perf.statistics.intervals import Interval
from tpx.protocol.tensors import Array

STABILITY_WINDOWS = 3
GROUP = 5
FEWEST_STEADY = 2
SLICES = 20
SLICE_REQUESTS = 5
"""Warm-up is looked for in slices of a window, each of so many requests on average at least."""
LATENCY_MOVES = "Request latency is not stabilizing. Please try lowering the request rate."
"""perf_analyzer's words for a level of which only the throughput is stable."""
SURE = 0.9999
"""A latency limit is settled by one look at this confidence, else by two looks in a row; a window that
differs by chance with this confidence only is no warm-up."""
LOOK_GROWTH = 1.25
"""By intervals a level is looked at again when it has so many times as many windows as at the last look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelStatus:
    """How a level stands after its windows so far.

    The figures are those of the last `kept` windows; `warmup` of the first are left out as such. `moved`
    says why it is not stable.
    """

    kept: int
    warmup: int = 0
    stable: bool
    moved: str = ""
    warning: str = ""
    """Reason to doubt a stable level."""
    limit: Assessment | None = None
    """The answer to the latency limit, UNDECIDED until it is settled; None without a limit."""


class StabilityRule(Protocol):
    """Decides how a level stands."""

    def status(self, windows: Sequence[Window], samples: Sequence[Sample]) -> LevelStatus:
        """After at least one window; samples are those of the windows."""


def rule_for(settings: LevelSettings) -> StabilityRule:
    """The rule that the settings ask for."""
    rule: StabilityRule
    if settings.request_count or settings.one_window:
        rule = OneWindow()
    else:
        rules: dict[str, Callable[[LevelSettings], StabilityRule]] = {
            "ci": Precision,
            "pa": ThreeWindows,
            "brief": Brief,
        }
        rule = rules[settings.rule](settings)
    limit = settings.latency_limit
    return rule if limit is None else LatencyLimit(rule, limit, settings)


class OneWindow:
    """Implements StabilityRule for a counted run: its one window is the level, if it has a valid request."""

    def status(self, windows: Sequence[Window], samples: Sequence[Sample]) -> LevelStatus:  # noqa: ARG002
        return LevelStatus(kept=1, stable=windows[-1].latency is not None)


class Brief:
    """Implements StabilityRule for one of many measurements, the best of which are repeated: the 95% interval
    of throughput reaches at most half of the tolerance to either side, which takes one window mostly."""

    def __init__(self, settings: LevelSettings) -> None:
        self._tolerance = settings.stability

    def status(self, windows: Sequence[Window], samples: Sequence[Sample]) -> LevelStatus:
        if any(w.latency is None for w in windows):
            return LevelStatus(kept=1, stable=False, moved="a window had no valid request")
        throughput, limit = Estimator(joined(samples)).throughput(1), self._tolerance / 2
        return LevelStatus(
            kept=len(windows),
            stable=throughput.within(limit),
            moved=f"throughput is known to {_reach(throughput)}, +-{limit * 100:g}% is wanted",
        )


class ThreeWindows:
    """Implements StabilityRule as perf_analyzer does: the last three windows resemble each other.

    Of asynchronous calls it is content with the throughput once there are no further windows. A level that
    is held against objectives or a latency limit may go on although three windows resembled each other: its
    figures are then those of all windows behind the warm-up, as further windows would settle nothing if they
    only replaced earlier ones.
    """

    def __init__(self, settings: LevelSettings) -> None:
        self._tolerance = settings.stability
        self._content_at = settings.max_windows if settings.asynchronous else 0
        self._accumulates = settings.latency_limit is not None or bool(settings.objectives)
        self._was_stable = False

    def status(self, windows: Sequence[Window], samples: Sequence[Sample]) -> LevelStatus:
        found = self._of_last(windows)
        if not self._accumulates or len(windows) <= STABILITY_WINDOWS:
            self._was_stable = found.stable
            return found
        self._was_stable = self._was_stable or found.stable
        warmup = leading_warmup(windows, samples, self._tolerance)
        return replace(found, kept=len(windows) - warmup, warmup=warmup, stable=self._was_stable)

    def _of_last(self, windows: Sequence[Window]) -> LevelStatus:
        kept = min(len(windows), STABILITY_WINDOWS)
        if len(windows) < STABILITY_WINDOWS:
            moved = f"{STABILITY_WINDOWS} windows are needed, there were {len(windows)}"
        else:
            moved = describe_spread(windows)
        if is_stable(windows, self._tolerance):
            return LevelStatus(kept=kept, stable=True, moved=moved)
        if 0 < self._content_at <= len(windows) and is_stable(windows, self._tolerance, latency=False):
            return LevelStatus(kept=kept, stable=True, moved=moved, warning=LATENCY_MOVES)
        return LevelStatus(kept=kept, stable=False, moved=moved)


class Precision:
    """Implements StabilityRule: of all windows but those of the warm-up, the 95% confidence intervals of
    throughput and of the latency that stands for the level reach at most half of the tolerance to either
    side.

    A level that stops at the first moment when its intervals are narrow has been chosen for looking even,
    and its intervals would hold the truth less often than they say. So there are few looks, each at a good
    deal more windows than the one before, and two in a row have to find them narrow.
    """

    def __init__(self, settings: LevelSettings) -> None:
        self._tolerance = settings.stability
        self._percentile = settings.percentile
        self._max_windows = settings.max_windows
        self._next_look = STABILITY_WINDOWS
        self._narrow = False
        self._found = LevelStatus(kept=0, stable=False, moved=f"{STABILITY_WINDOWS} windows are needed")

    def status(self, windows: Sequence[Window], samples: Sequence[Sample]) -> LevelStatus:
        count = len(windows)
        if count - self._found.warmup < self._next_look and count < self._max_windows:
            return replace(self._found, kept=count - self._found.warmup)
        warmup = leading_warmup(windows, samples, self._tolerance)
        kept = count - warmup
        if kept < STABILITY_WINDOWS or any(w.latency is None for w in windows[warmup:]):
            moved = f"{STABILITY_WINDOWS} steady windows are needed, there were {kept}"
            self._found = LevelStatus(kept=kept, warmup=warmup, stable=False, moved=moved)
        else:
            self._found = self._look(kept, warmup, joined(samples[warmup:]))
            if count == self._max_windows:
                # this look was due whatever it finds, so that it chooses nothing
                self._found = replace(self._found, stable=self._narrow)
        return self._found

    def _look(self, kept: int, warmup: int, sample: Sample) -> LevelStatus:
        estimator = Estimator(sample)
        throughput = estimator.throughput(1)
        latency = estimator.latency(self._percentile).interval
        limit = self._tolerance / 2
        before, self._narrow = self._narrow, throughput.within(limit) and latency.within(limit)
        self._next_look = math.ceil(kept * LOOK_GROWTH)
        return LevelStatus(
            kept=kept,
            warmup=warmup,
            stable=before and self._narrow,
            moved=f"throughput is known to {_reach(throughput)}, latency to {_reach(latency)}; "
            f"+-{limit * 100:g}% are wanted",
        )


class LatencyLimit:
    """Implements StabilityRule: what another rule finds, and on which side of the latency limit the level
    lies.

    The interval of latency has to lie on one side at two looks in a row, or at one look that is SURE; the
    last look, which is due whatever it finds, counts alone.
    """

    def __init__(self, rule: StabilityRule, limit: Objective, settings: LevelSettings) -> None:
        self._rule = rule
        self._limit = limit
        self._confidence = settings.safety
        self._last = 1 if settings.request_count or settings.one_window else settings.max_windows
        self._before = Outcome.UNDECIDED

    def status(self, windows: Sequence[Window], samples: Sequence[Sample]) -> LevelStatus:
        found = self._rule.status(windows, samples)
        if len(windows) < min(STABILITY_WINDOWS, self._last):
            return found
        return replace(
            found, limit=self._look(joined(samples[-found.kept :]), last=len(windows) >= self._last)
        )

    def _look(self, sample: Sample, *, last: bool) -> Assessment:
        (surely,) = assess((self._limit,), sample, 1, SURE)
        if surely.outcome is not Outcome.UNDECIDED:
            return surely
        (now,) = assess((self._limit,), sample, 1, self._confidence)
        before, self._before = self._before, now.outcome
        return now if last or now.outcome is before else replace(now, outcome=Outcome.UNDECIDED)


def is_stable(windows: Sequence[Window], tolerance: float, *, latency: bool = True) -> bool:
    """Return whether throughput and latency of the last three windows spread by a factor of at most 1 +
    `tolerance`; throughput alone without `latency`.

    perf_analyzer: inference_profiler.cc, DetermineStability (the greatest over the least, not a deviation
    from the average as its documentation says).
    """
    last = windows[-STABILITY_WINDOWS:]
    if len(last) < STABILITY_WINDOWS or any(w.latency is None for w in last):
        return False
    if _spread([w.throughput_infer_per_s for w in last]) > 1 + tolerance:
        return False
    return not latency or _spread([w.latency_ns for w in last]) <= 1 + tolerance


def describe_spread(windows: Sequence[Window]) -> str:
    """Say how far the last three windows spread: `throughput moved by 12.1%, latency by 3.0%`."""
    last = [w for w in windows[-STABILITY_WINDOWS:] if w.latency is not None]
    if len(last) < STABILITY_WINDOWS:
        return (
            f"only {len(last)} of the last {min(len(windows), STABILITY_WINDOWS)} windows had valid requests"
        )
    throughput = (_spread([w.throughput_infer_per_s for w in last]) - 1) * 100
    latency = (_spread([w.latency_ns for w in last]) - 1) * 100
    return f"throughput moved by {throughput:.1f}%, latency by {latency:.1f}%"


def _spread(values: Sequence[float]) -> float:
    return max(values) / max(min(values), 1e-9)


def leading_warmup(windows: Sequence[Window], samples: Sequence[Sample], tolerance: float) -> int:
    """Return how many leading windows are warm-up; 0 while that would leave too few to say so."""
    if len(windows) <= STABILITY_WINDOWS or any(w.latency is None for w in windows):
        return 0
    fewest = min(w.requests for w in windows)
    slices = max(1, min(SLICES, fewest // SLICE_REQUESTS))
    parts = [_sliced(s, slices) for s in samples]
    rates = np.concatenate([p[0] for p in parts])
    latencies = np.concatenate([p[1] for p in parts])
    figures = [
        [w.throughput_infer_per_s for w in windows],
        [float(w.latency.mean_ns) for w in windows if w.latency is not None],
    ]
    starts = [steady_from(series) / slices for series in (rates, latencies)]
    return min(warm_windows(figures, starts, tolerance / 2), len(windows) // 2)


def _reach(interval: Interval) -> str:
    if interval.high is None:
        return "no upper end (too few requests)"
    return f"+-{interval.half_width / max(interval.value, 1e-9) * 100:.1f}%"


def _sliced(sample: Sample, slices: int) -> tuple[Array, Array]:
    """Return successes and mean latency per slice of a window; the window's mean where a slice is empty."""
    span = max(sample.end_ns - sample.start_ns, 1)
    place = np.clip((sample.ends[sample.ok] - sample.start_ns) * slices // span, 0, slices - 1)
    good = sample.good
    counts = np.bincount(place.astype(np.int64), minlength=slices)
    sums = np.bincount(place.astype(np.int64), weights=good, minlength=slices)
    means = np.where(counts > 0, sums / np.maximum(counts, 1), good.mean())
    return counts.astype(np.float64), means


def steady_from(values: Array) -> int:
    """Return the index of the first value of the steady part, at most the middle; a multiple of five.

    MSER-5 cuts off a beginning that only widens the error of the mean: K. P. White, "An effective truncation
    heuristic for bias reduction in simulation output", Simulation 69, 1997.
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
    """Return how many leading windows are warm-up.

    `figures` are those of every window, one sequence for each quantity; `starts` says for each quantity where
    it becomes steady, in windows. A window goes when most of it lies before that, and its figure is further
    than `tolerance` (as 0.05) from the mean of those that stay, and further than their own spread explains:
    what only looks unlike the rest by chance must stay, or the mean would be that of a selection.
    """
    return max(
        (_leading(values, start, tolerance) for values, start in zip(figures, starts, strict=True)), default=0
    )


def _leading(values: Sequence[float], start: float, tolerance: float) -> int:
    proposed = min(round(start), len(values) - FEWEST_STEADY)
    for count in range(proposed, 0, -1):
        steady = np.asarray(values[count:])
        mean, spread = float(steady.mean()), float(steady.std(ddof=1))
        chance = t_quantile(0.5 + SURE / 2, len(steady) - 1) * spread * math.sqrt(1 + 1 / len(steady))
        if abs(values[count - 1] - mean) > max(tolerance * abs(mean), chance):
            return count
    return 0
