"""The finished run that text, files and pages are made from, and the formats that scripts read.

Figures are whole microseconds, each truncated separately, and rates of six digits.
"""

from dataclasses import dataclass

from tpx.perf.clients.model import ModelDescription, ServerDescription
from tpx.perf.levels import Level
from tpx.perf.options import SessionSpec
from tpx.perf.results import LevelResult, Verdict
from tpx.report.digits import rounded


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
    """Offset from a window's times to nanoseconds since 1970."""
    error: str = ""
    """Reason why the run ended before its last level."""
    answer: Level | None = None
    """Result of a search for the highest load; None if it found nothing or there was none."""

    @property
    def best(self) -> LevelResult | None:
        """Level of the highest throughput within limits, or the highest load that meets the objectives."""
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
        """True if a level had no usable responses, or more failures than the error budget allows."""
        return any(r.verdict is Verdict.ERRORS for r in self.levels)

    @property
    def breaks_slo(self) -> bool:
        """True if objectives were set and no measured load meets them."""
        return bool(self.config.answers.slo) and self.answer is None

    @property
    def any_unstable(self) -> bool:
        return any(r.verdict is Verdict.UNSTABLE for r in self.levels)

    @property
    def only_unstable(self) -> bool:
        """True if levels were measured and all of them are unstable."""
        return bool(self.levels) and all(r.verdict is Verdict.UNSTABLE for r in self.levels)


def usec(duration_ns: float) -> int:
    """Return whole microseconds, truncated."""
    return int(duration_ns) // 1000


def average_us(total_ns: int, count: int) -> int:
    """Return the average in whole microseconds; 0 if `count` is 0."""
    return total_ns // (count * 1000) if count else 0


def rate(value: float) -> str:
    """Format a rate as C++ prints a double: six significant digits."""
    return f"{value:.6g}"


def throughput(result: LevelResult) -> str:
    """Return a level's throughput for people."""
    return f"{rounded(result.throughput_infer_per_s)} infer/s"


def percentile_name(percentile: float) -> str:
    """Return `p99`, `p99.9`."""
    return f"p{percentile:g}"


def level_title(level: Level) -> str:
    """Return the line above a level's figures; empty for a user's own schedule, as in perf_analyzer."""
    return level.kind.title.format(label=level.kind.label, value=level.value)


def level_name(level: Level) -> str:
    """Return the name of a level in the summary: `Concurrency: 4`."""
    return f"{level.kind.label}: {rate(level.value)}"


def load_name(level: Level) -> str:
    """Return the name of a load within a sentence: `concurrency 16`, `request rate 250`."""
    return f"{level.kind.text} {rate(level.value)}"
