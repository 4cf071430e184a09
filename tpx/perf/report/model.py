"""The report of a run, which its text, files and pages are made from, and its figures as scripts read them:
whole microseconds, each truncated by itself, rates of six digits."""

from dataclasses import dataclass

from tpx.perf.clients.model import ModelDescription, ServerDescription
from tpx.perf.levels import Level
from tpx.perf.options import SessionSpec
from tpx.perf.results import LevelResult, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A finished run. Times are ISO 8601 in UTC."""

    config: SessionSpec
    server: ServerDescription
    model: ModelDescription
    levels: tuple[LevelResult, ...]
    started: str
    finished: str
    interrupted: bool = False
    offset_ns: int = 0
    """Added to a window's times gives nanoseconds since 1970."""
    error: str = ""
    """What ended the run before its last level."""
    answer: Level | None = None
    """What a binary search found; None where it found nothing, or nothing was searched."""

    @property
    def best(self) -> LevelResult | None:
        """The level of the highest throughput among those that met the limits; with objectives, the highest
        load that meets them."""
        if self.config.answers.slo:
            return next((r for r in self.levels if r.level == self.answer), None)
        good = [r for r in self.levels if r.meets_limits]
        return max(good, key=lambda r: r.throughput_infer_per_s, default=None)

    @property
    def over_budget(self) -> bool:
        return any(r.over_budget for r in self.levels)

    @property
    def has_valid_requests(self) -> bool:
        return any(r.requests for r in self.levels)

    @property
    def has_dead_level(self) -> bool:
        """Return whether in some level a whole window passed without a valid request."""
        return any(r.verdict is Verdict.ERRORS for r in self.levels)

    @property
    def has_invalid_level(self) -> bool:
        """Return whether a level broke a rule of its MLPerf scenario."""
        return any(r.validity is not None and not r.validity.valid for r in self.levels)

    @property
    def breaks_slo(self) -> bool:
        """Return whether objectives were set, and no measured load meets them."""
        return bool(self.config.answers.slo) and self.answer is None

    @property
    def any_unstable(self) -> bool:
        return any(r.verdict is Verdict.UNSTABLE for r in self.levels)

    @property
    def only_unstable(self) -> bool:
        """Return whether levels were measured and none of them was stable."""
        return bool(self.levels) and all(r.verdict is Verdict.UNSTABLE for r in self.levels)


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
