"""Parse what the command line and YAML files say about loads: ranges, files of intervals, weighted models."""

from pathlib import Path

from tpx.options import refuse
from tpx.perf.levels import (
    CONCURRENCY,
    CUSTOM_INTERVALS,
    PERIODIC_CONCURRENCY,
    REQUEST_RATE,
    Intervals,
    LevelRange,
    LoadKind,
    ModelShare,
    PeriodicRange,
)


def parse_concurrency(text: str) -> LevelRange:
    """Parse `start:end:step` with empty parts for defaults, `start:end:xFACTOR`, or a list `1,2,8`."""
    return _parse_range(text, CONCURRENCY)


def parse_rates(text: str) -> LevelRange:
    """Parse a range of requests per second, which need not be whole; same syntax."""
    return _parse_range(text, REQUEST_RATE)


def _parse_range(text: str, kind: LoadKind) -> LevelRange:
    flag = kind.flag

    def read(part: str) -> float:
        try:
            value = int(part) if kind.whole else float(part)
        except ValueError:
            refuse(flag, f"Invalid value provided: {text}")
        if not value < float("inf"):
            refuse(flag, f"Invalid value provided: {text}")
        return value

    if "," in text:
        return LevelRange(mode=kind.name, listed=tuple(read(part) for part in text.split(",")))
    parts = text.split(":")
    if len(parts) > 3:
        refuse(flag, "The value does not match <start:end:step>.")
    start, end, step = [*parts, "", ""][:3]
    factor = 0.0
    if step.startswith("x"):
        try:
            factor = float(step[1:])
        except ValueError:
            refuse(flag, f"Invalid value provided: {text}")
        step = ""
    return LevelRange(
        mode=kind.name,
        start=read(start or "1"),
        end=read(end) if end else None,
        step=read(step or "1"),
        factor=factor,
    )


def parse_periodic(text: str) -> PeriodicRange:
    """Parse `start:end[:step]` of a growing concurrency."""
    flag = PERIODIC_CONCURRENCY.flag
    parts = text.split(":")
    if len(parts) > 3:
        refuse(flag, "The value does not match <start:end:step>.")
    if len(parts) < 2 or not parts[0] or not parts[1]:
        refuse(flag, "Both <start> and <end> values must be provided.")
    try:
        start, end, step = (int(part) for part in [*parts, "1"][:3])
    except ValueError:
        refuse(flag, f"Invalid value provided: {text}")
    if step <= 0:
        refuse(flag, "The <step> value must be > 0.")
    if start <= 0:
        refuse(flag, "The <start> value must be > 0.")
    if start > end:
        refuse(flag, "The <start> must be <= <end>.")
    if (end - start) % step:
        refuse(flag, "The <step> value must be a factor of the range size (<end> - <start>).")
    return PeriodicRange(start=start, end=end, step=step)


def parse_intervals(text: str) -> Intervals:
    """Read a file with one interval in microseconds per line; empty lines are skipped."""
    flag = CUSTOM_INTERVALS.flag
    path = Path(text)
    try:
        lines = path.read_text("utf-8").split()
    except (OSError, UnicodeDecodeError):
        refuse(flag, "The value must be a valid file path")
    if not lines:
        refuse(flag, f"file '{text}' is empty")
    gaps = []
    for line in lines:
        try:
            gaps.append(round(float(line) * 1000))
        except (ValueError, OverflowError):
            refuse(flag, f"file '{text}': '{line}' is not a number of microseconds")
    if min(gaps) < 0 or sum(gaps) == 0:
        refuse(flag, f"file '{text}': intervals must be >= 0 and one of them > 0")
    return Intervals(path=path, gaps_ns=tuple(gaps))


def parse_models(text: str) -> tuple[ModelShare, ...]:
    """Parse `a:3,b:1`; the default weight is 1."""
    flag = "--models"
    shares = []
    for part in text.split(","):
        name, colon, weight = part.strip().rpartition(":")
        try:
            share = ModelShare(name, float(weight)) if colon else ModelShare(weight)
        except ValueError:
            refuse(flag, f"The weight of '{part}' is not a number.")
        if not share.name or not 0 < share.weight < float("inf"):
            refuse(flag, f"The value '{part}' does not match <name:weight> with a weight > 0.")
        shares.append(share)
    if len({share.name for share in shares}) < len(shares):
        refuse(flag, "A model is named twice.")
    return tuple(shares)
