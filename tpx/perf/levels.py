"""Reading which loads are to be measured: ranges, lists, files of intervals, from the command line's text."""

from collections.abc import Callable
from pathlib import Path

from tpx.perf.plan import Intervals, ModelShare, PeriodicRange
from tpx.perf.settings import LevelRange, LoadMode, refuse

MAX_WORKERS = 256


def parse_concurrency(text: str) -> LevelRange:
    """`start:end:step` with empty parts for defaults, `start:end:xFACTOR`, or a list `1,2,8`."""
    return _range(text, "concurrency", "--concurrency-range", int)


def parse_rates(text: str) -> LevelRange:
    """The same of requests per second, which need not be whole."""
    return _range(text, "request_rate", "--request-rate-range", float)


def _range(text: str, mode: LoadMode, flag: str, number: Callable[[str], float]) -> LevelRange:
    def read(part: str) -> float:
        try:
            value = number(part)
        except ValueError:
            refuse(flag, f"Invalid value provided: {text}")
        if not value < float("inf"):
            refuse(flag, f"Invalid value provided: {text}")
        return value

    if "," in text:
        return LevelRange(mode=mode, listed=tuple(read(part) for part in text.split(",")))
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
        mode=mode,
        start=read(start or "1"),
        end=read(end) if end else None,
        step=read(step or "1"),
        factor=factor,
    )


def parse_periodic(text: str) -> PeriodicRange:
    """`start:end[:step]` of a concurrency that grows while it is measured."""
    flag = "--periodic-concurrency-range"
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
    """A file with one interval of microseconds a line; empty lines are skipped."""
    flag = "--request-intervals"
    path = Path(text)
    try:
        lines = path.read_text("utf-8").split()
    except (OSError, UnicodeDecodeError):
        refuse(flag, "The value must be a valid file path")
    if not lines:
        refuse(flag, f"file '{text}' is empty")
    gaps = tuple(_gap_ns(flag, text, line) for line in lines)
    if min(gaps) < 0 or sum(gaps) == 0:
        refuse(flag, f"file '{text}': intervals must be >= 0 and one of them > 0")
    return Intervals(path=path, gaps_ns=gaps)


def _gap_ns(flag: str, file: str, word: str) -> int:
    try:
        return round(float(word) * 1000)
    except (ValueError, OverflowError):
        refuse(flag, f"file '{file}': '{word}' is not a number of microseconds")


def parse_models(text: str) -> tuple[ModelShare, ...]:
    """`a:3,b:1`; a weight that is left out is 1."""
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


def parse_workers(text: str) -> int:
    """A number of processes, or `auto`, which is 0."""
    if text.lower() == "auto":
        return 0
    if not text.isdecimal() or not 0 < int(text) <= MAX_WORKERS:
        refuse("--workers", f"The value must be 'auto' or a number from 1 to {MAX_WORKERS}.")
    return int(text)
