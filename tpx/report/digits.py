"""Formatting of figures for reports and terminals: three significant digits, thousands separators,
latencies in µs below 1 ms and in ms above.

Machine-readable files keep full precision.
"""

import math

DIGITS = 3
MICROSECONDS = "\u00b5s"
"""Unit in texts for people; files for programs, their columns and flags say `us`."""


def rounded(value: float, like: float | None = None) -> str:
    """Return `26,400`, `22.3` or `0.414`; `like` sets the precision to that figure's last digit."""
    measure = like or value
    if not measure or not math.isfinite(value):
        return "0" if not value else str(value)
    places = DIGITS - 1 - math.floor(math.log10(abs(float(f"{measure:.{DIGITS - 1}e}"))))
    return f"{round(value, places):,.{max(0, places)}f}"


def latency(duration_ns: float) -> str:
    """Return `638 µs` or `2.41 ms`."""
    us = float(f"{duration_ns / 1e3:.{DIGITS - 1}e}")
    return f"{rounded(us)} {MICROSECONDS}" if us < 1000 else f"{rounded(duration_ns / 1e6)} ms"


def in_unit(value: float, unit: str) -> str:
    """Return a figure with its unit; milliseconds below 1 become microseconds."""
    return latency(value * 1e6) if unit == "ms" else f"{rounded(value)} {unit}".rstrip()


LARGEST_PERCENT = 0.5
"""Change up to which an interval is shown in percent; beyond, by ratios."""


def ratio(value: float) -> str:
    """Return `0.8x`, `2.9x` or `13x`; `1.03x` close to 1: whether it is more or less must show."""
    if value != 1 and round(value, 1) == 1:
        return f"{value:.2f}x"
    return f"{value:,.0f}x" if value >= 10 else f"{value:.1f}x" if value >= 0.1 else f"{value:.1g}x"


def change(share: float, places: int = 0) -> str:
    """Return a change as `+4%`; one to less than half or more than double as a ratio, such as `2.9x`."""
    if not -0.5 <= round(share, 2) <= 1:
        return ratio(1 + share)
    value = round(share * 100, places)
    return f"{value:+.{places}f}%" if value else f"{0:.{places}f}%"


def change_range(low: float, high: float, places: int = 0) -> str:
    """Return the interval of a change, such as `-3 to +16%`, or by ratios, such as `0.8x to 7.7x`."""
    if not math.isfinite(high):
        return "unknown"
    if max(abs(low), abs(high)) > LARGEST_PERCENT:
        return f"{ratio(1 + low)} to {ratio(1 + high)}"
    if any(bound and not round(bound * 100, places) for bound in (low, high)):
        places += 1  # whether zero is in the interval must show
    return f"{change(low, places).removesuffix('%')} to {change(high, places)}"


def duration(elapsed_ns: float) -> str:
    """Return `42 s`, `3 min 05 s`, `2 h 07 min`."""
    minutes, seconds = divmod(round(elapsed_ns / 1e9), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
