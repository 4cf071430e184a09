"""Scales of axes: the range of values, and round values to mark."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Values from `low` to `high`, linear or logarithmic, with tick marks."""

    low: float
    high: float
    logarithmic: bool
    marks: tuple[float, ...]
    labels: tuple[str, ...] = ()
    """Texts of the marks; if empty, the formatted marks."""

    def share(self, value: float) -> float:
        """Return the position of a value, 0 at the low end and 1 at the high end."""
        if self.logarithmic:
            return math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def named_marks(self) -> Iterator[tuple[float, str]]:
        """Yield each mark with its text."""
        return zip(self.marks, self.labels or map(format_mark, self.marks), strict=True)


def linear_scale(values: Sequence[float], *, count: int = 5) -> Scale:
    """Return a scale from zero to a round value above the maximum, with about `count` round steps."""
    step = _round_step(max(values, default=1.0) or 1.0, count)
    steps = max(1, math.ceil(max(values, default=1.0) / step - 1e-9))
    marks = tuple(step * i for i in range(steps + 1))
    return Scale(low=0.0, high=marks[-1], logarithmic=False, marks=marks)


def log_scale(values: Sequence[float]) -> Scale:
    """Return a logarithmic scale that covers the values, with ends and marks at 1, 2, 5, 10 ..."""
    low, high = min(values), max(values)
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    candidates = [factor * 10.0**decade for decade in decades for factor in (1, 2, 5)]
    first = max(c for c in candidates if c <= low * (1 + 1e-9))
    last = min((c for c in candidates if c >= high * (1 - 1e-9)), default=candidates[-1])
    marks = tuple(c for c in candidates if first <= c <= last)
    if len(marks) < 2:
        return linear_scale(values)
    return Scale(low=first, high=last, logarithmic=True, marks=marks)


def exact_log_scale(low: float, high: float) -> Scale:
    """Return a logarithmic scale over exactly this range, with the round marks within it."""
    high = max(high, low * 1.01)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high / low > 4 else (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)
    marks = tuple(s * 10.0**d for d in decades for s in steps if low <= s * 10.0**d <= high)
    return Scale(low=low, high=high, logarithmic=True, marks=marks)


def scale_around(middle: float, reach: float) -> Scale:
    """Return a linear scale around a value with about six round steps, at least `reach` to either side."""
    step = next(s for s in (1.0, 2.0, 2.5, 5.0, 10.0, 20.0, 25.0, 50.0, 100.0, 1e9) if s * 3 >= reach)
    steps = math.ceil(reach / step)
    marks = tuple(middle + step * i for i in range(-steps, steps + 1))
    return Scale(low=marks[0], high=marks[-1], logarithmic=False, marks=marks)


def scale_for(values: Sequence[float]) -> Scale:
    """Return a logarithmic scale if the values span more than a factor of eight, otherwise a linear
    one.

    Latencies under doubling load are the typical case.
    """
    if values and min(values) > 0 and max(values) / min(values) > 8:
        return log_scale(values)
    return linear_scale(values)


def format_mark(value: float) -> str:
    """Return `0`, `0.5`, `20`, `1,500`, without superfluous digits."""
    return f"{value:,.0f}" if value == round(value) else f"{value:.6f}".rstrip("0")


def _round_step(span: float, count: int) -> float:
    rough = span / count
    magnitude = 10.0 ** math.floor(math.log10(rough))
    return next(
        factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= rough * (1 - 1e-9)
    )
