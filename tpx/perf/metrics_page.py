"""The address of a server's metrics page, and the figures of a level that are read from it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFigures:
    """Figures of one GPU over a level; None for those that the page lacks."""

    uuid: str
    utilization: float | None = None
    """Mean, 0 to 1."""
    power_w: float | None = None
    """Mean, in watts."""
    memory_used_bytes: float | None = None
    """Maximum."""
    memory_total_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesFigures:
    """One series of the page over a level; `per_s` is the growth rate of a counter, None for other types."""

    name: str
    """Name with labels, as on the page."""
    mean: float
    low: float
    high: float
    last: float
    per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsFigures:
    """Everything scraped while a level was measured."""

    scrapes: int
    failed: int
    gpus: tuple[GpuFigures, ...] = ()
    """GPUs in order of uuid."""
    mean_batch: float | None = None
    """Inferences per execution, from Triton's counters summed over all models."""
    cpu_utilization: float | None = None
    """Mean over the server's machine, 0 to 1."""
    memory_used_bytes: float | None = None
    """Maximum, for the server's process or else its machine."""
    series: tuple[SeriesFigures, ...] = ()
    """Series that the user requested."""
    scrape_ns: int = 0
    """Mean duration of a scrape."""
    cost_ns: int = 0
    """Mean CPU time to parse a scrape in this process, which is not available to the load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsAddress:
    """A metrics page, its scrape interval, and the additional series to read from it."""

    host: str
    port: int
    path: str
    interval_s: float
    wanted: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.host}:{self.port}{self.path}"
