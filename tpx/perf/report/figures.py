"""Single figures as scripts read them: whole microseconds, each truncated by itself, rates of six digits;
and the names of loads."""

from tpx.perf.levels import Level


def usec(duration_ns: float) -> int:
    """Whole microseconds, truncated."""
    return int(duration_ns) // 1000


def average_us(total_ns: int, count: int) -> int:
    """Whole microseconds of each of `count`; 0 of none."""
    return total_ns // (count * 1000) if count else 0


def rate(value: float) -> str:
    """A rate as C++ prints a double: six significant digits."""
    return f"{value:.6g}"


def percentile_name(percentile: float) -> str:
    """p99, p99.9"""
    return f"p{percentile:g}"


def level_title(level: Level) -> str:
    """Return the line above a level's figures; perf_analyzer has none over a user's own schedule."""
    return level.kind.title.format(label=level.kind.label, value=level.value)


def level_name(level: Level) -> str:
    """Return what stands before a level in the summary: `Concurrency: 4`."""
    return f"{level.kind.label}: {rate(level.value)}"


def load_name(level: Level) -> str:
    """Return a load within a sentence: `concurrency 16`, `request rate 250`."""
    return f"{level.kind.unit or level.kind.text} {rate(level.value)}"
