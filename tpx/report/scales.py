"""Axes: where a value lies on the page, and round values to mark."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tick:
    """A marked value: its position in pixels and its text."""

    at: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Values from `low` to `high` laid over pixels from `start` to `end`, linear or logarithmic."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool
    marks: tuple[float, ...]

    def at(self, value: float) -> float:
        """Pixels of a value; values below a logarithmic axis lie on its start."""
        if self.logarithmic:
            value = max(value, self.low)
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    @property
    def ticks(self) -> tuple[Tick, ...]:
        return tuple(Tick(self.at(mark), format_mark(mark)) for mark in self.marks)


def linear_axis(values: Sequence[float], start: float, end: float, *, count: int = 5) -> Axis:
    """From zero to a round value above the greatest, in about `count` round steps."""
    step = _round_step(max(values, default=1.0) or 1.0, count)
    steps = max(1, math.ceil(max(values, default=1.0) / step - 1e-9))
    marks = tuple(step * i for i in range(steps + 1))
    return Axis(low=0.0, high=marks[-1], start=start, end=end, logarithmic=False, marks=marks)


def log_axis(values: Sequence[float], start: float, end: float) -> Axis:
    """From a mark at or below the least value to one at or above the greatest, marked at 1, 2, 5, 10 ..."""
    low, high = min(values), max(values)
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    candidates = [factor * 10.0**decade for decade in decades for factor in (1, 2, 5)]
    first = max(c for c in candidates if c <= low * (1 + 1e-9))
    last = min((c for c in candidates if c >= high * (1 - 1e-9)), default=candidates[-1])
    marks = tuple(c for c in candidates if first <= c <= last)
    if len(marks) < 2:
        return linear_axis(values, start, end)
    return Axis(low=first, high=last, start=start, end=end, logarithmic=True, marks=marks)


def axis_for(values: Sequence[float], start: float, end: float) -> Axis:
    """Logarithmic where the values span more than a factor of eight, as latencies under doubling load do."""
    if values and min(values) > 0 and max(values) / min(values) > 8:
        return log_axis(values, start, end)
    return linear_axis(values, start, end)


def format_mark(value: float) -> str:
    """`0`, `0.5`, `20`, `1,500`: no more digits than a round value needs."""
    return f"{value:,.0f}" if value == round(value) else f"{value:.6f}".rstrip("0")


def _round_step(span: float, count: int) -> float:
    rough = span / count
    magnitude = 10.0 ** math.floor(math.log10(rough))
    return next(
        factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= rough * (1 - 1e-9)
    )
