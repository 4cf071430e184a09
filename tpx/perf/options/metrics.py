"""The options that say what is looked at beside the answers: the server's metrics."""

import re
from dataclasses import dataclass

from tpx.errors import UsageError
from tpx.options import given, option, refuse
from tpx.perf.metrics.figures import MetricsPlace

DEFAULT_PORT = 8002
DEFAULT_PATH = "/metrics"


def parse_metric(text: str) -> str:
    """A regular expression for names of series."""
    try:
        re.compile(text)
    except re.error as exc:
        refuse("--metric", f"'{text}' is no regular expression: {exc}.")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSpec:
    """Which page, how often, and what of it."""

    collect_metrics: bool = option(False, "look at the server's Prometheus metrics while it is measured")
    metrics_url: str = option(
        "",
        "where they are (the server's host, port 8002, /metrics)",
        metavar="HOST:PORT/PATH",
    )
    metrics_interval: int | None = option(None, "milliseconds from look to look (default 1000)", metavar="MS")
    metric: tuple[str, ...] = option(
        (),
        "report further series: a regular expression searched for in name and labels (repeatable)",
        metavar="REGEX",
        parse=parse_metric,
    )

    def __post_init__(self) -> None:
        """Raise UsageError for a value out of range, or options that do not go together."""
        if self.metrics_interval is not None and self.metrics_interval <= 0:
            refuse("--metrics-interval", "The value must be > 0 msecs.")
        for name in ("metrics_url", "metrics_interval", "metric"):
            if name in given(self) and not self.collect_metrics:
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(f"Must specify --collect-metrics when using the {flag} option.")
        if self.metrics_url:
            self.place("")

    def place(self, host: str) -> MetricsPlace | None:
        """Where to look, on the server's `host` unless a URL says otherwise; None where nobody asks."""
        if not self.collect_metrics:
            return None
        port, path = DEFAULT_PORT, DEFAULT_PATH
        if self.metrics_url:
            host, port, path = _parts(self.metrics_url)
        interval_s = (self.metrics_interval or 1000) / 1000
        return MetricsPlace(host=host, port=port, path=path, interval_s=interval_s, wanted=self.metric)


def _parts(url: str) -> tuple[str, int, str]:
    if url.startswith("https://"):
        raise UsageError(f"--metrics-url {url}: metrics are read over http only")
    place, slash, path = url.removeprefix("http://").partition("/")
    host, colon, port = place.rpartition(":")
    if not colon:
        host, port = place, "80" if url.startswith("http://") else str(DEFAULT_PORT)
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"--metrics-url {url}: does not match <host>:<port>/<path>")
    return host.strip("[]"), int(port), slash + path or DEFAULT_PATH
