"""How single figures are written: whole microseconds, each truncated by itself, and rates with six
significant digits, because scripts read them."""

from tpx.perf.settings import Level


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
    if level.mode == "request_rate":
        return f"Request Rate: {rate(level.value)} inference requests per seconds"
    if level.mode == "concurrency":
        return f"Request concurrency: {level.value:g}"
    if level.mode in ("custom_intervals", "fixed_schedule"):
        return ""
    return f"{level.mode.replace('_', ' ').capitalize()}: {rate(level.value)}"


def level_name(level: Level) -> str:
    """What stands before a level in the summary."""
    names = {"concurrency": "Concurrency", "request_rate": "Request Rate", "custom_intervals": "Request Rate"}
    name = names.get(level.mode, level.mode.replace("_", " ").capitalize())
    return f"{name}: {rate(level.value)}"
