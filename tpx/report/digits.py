"""Formatting of figures for reports and terminals: three significant digits, thousands separators,
latencies in us below 1 ms and in ms above.

Machine-readable files keep full precision.
"""

import math

DIGITS = 3


def rounded(value: float, like: float | None = None) -> str:
    """Return `26,400`, `22.3` or `0.414`; `like` sets the precision to that figure's last digit."""
    measure = like or value
    if not measure or not math.isfinite(value):
        return "0" if not value else str(value)
    places = DIGITS - 1 - math.floor(math.log10(abs(float(f"{measure:.{DIGITS - 1}e}"))))
    return f"{round(value, places):,.{max(0, places)}f}"


def latency(duration_ns: float) -> str:
    """Return `638 us` or `2.41 ms`."""
    us = float(f"{duration_ns / 1e3:.{DIGITS - 1}e}")
    return f"{rounded(us)} us" if us < 1000 else f"{rounded(duration_ns / 1e6)} ms"


def in_unit(value: float, unit: str) -> str:
    """Return a figure with its unit; milliseconds below 1 become us."""
    return latency(value * 1e6) if unit == "ms" else f"{rounded(value)} {unit}".rstrip()


def percent(share: float) -> str:
    """Return a change as `+47%`, or `0%` if it rounds to zero."""
    value = round(share * 100)
    return f"{value:+d}%" if value else "0%"
