"""Where a server's metrics are, and what was scraped of them, as plain values."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFigures:
    """One GPU over a level; None where the page did not say."""

    uuid: str
    utilization: float | None = None
    """Mean, 0 to 1."""
    power_w: float | None = None
    """Mean."""
    memory_used_bytes: float | None = None
    """The greatest."""
    memory_total_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesFigures:
    """One series of the page over a level; of a counter `per_s` is its growth, None for anything else."""

    name: str
    """With its labels, as the page has it."""
    mean: float
    low: float
    high: float
    last: float
    per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsFigures:
    """All that was scraped while a level was measured."""

    scrapes: int
    failed: int
    gpus: tuple[GpuFigures, ...] = ()
    """By uuid."""
    mean_batch: float | None = None
    """Inferences in one execution, by Triton's counters of all models together."""
    cpu_utilization: float | None = None
    """Mean of the server's machine, 0 to 1."""
    memory_used_bytes: float | None = None
    """The greatest, of the server's machine or process."""
    series: tuple[SeriesFigures, ...] = ()
    """The series that the user asked for."""
    scrape_ns: int = 0
    """Mean time of a scrape."""
    cost_ns: int = 0
    """Mean processor time of reading one here, which the load does without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsPlace:
    """A page, how often to look at it, and which further series to take from it."""

    host: str
    port: int
    path: str
    interval_s: float
    wanted: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.host}:{self.port}{self.path}"
