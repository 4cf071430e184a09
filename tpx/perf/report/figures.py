"""How single figures are written: whole microseconds, each truncated by itself, and rates with six
significant digits, because scripts read them."""

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
    """What stands above a level's figures; over schedules of the user's own perf_analyzer has nothing."""
    return level.kind.title.format(label=level.kind.label, value=level.value)


def level_name(level: Level) -> str:
    """What stands before a level in the summary."""
    return f"{level.kind.label}: {rate(level.value)}"
