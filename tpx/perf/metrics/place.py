"""Where a server's metrics are."""

from dataclasses import dataclass


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
