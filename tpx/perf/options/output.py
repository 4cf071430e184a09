"""Output options: what is shown, which files are written, and which server metrics are collected."""

import re
from pathlib import Path

from tpx.errors import UsageError
from tpx.options import Options, check_range, fields_of, flag_of, given, option, refuse
from tpx.perf.metrics_page import MetricsAddress


class OutputSpec(Options):
    """Options for files to write, and for verbosity."""

    verbose: int = option(
        0,
        "show every window, and send and receive times; given twice: also log requests to the server, "
        "responses, and the end of each window on stderr",
        "-v",
        counted=True,
        common=True,
    )
    dry_run: bool = option(False, "show the plan, send one request, check the shapes, and exit", common=True)
    live: bool = option(True, "show progress while measuring, if stderr is a terminal", common=True)
    csv: Path | None = option(None, "write perf_analyzer's CSV", "-f", metavar="FILE", common=True)
    verbose_csv: bool = option(False, "add more columns to the CSV")
    profile_export_file: Path | None = option(
        None,
        "write every request with its inputs, outputs, and times, for genai-perf; the file must not exist",
        metavar="FILE",
    )
    json: Path | None = option(None, "write all levels as JSON", metavar="FILE", common=True)
    jsonl: Path | None = option(None, "write one JSON line per request", metavar="FILE")
    junit: Path | None = option(None, "write a JUnit test case for every level and objective", metavar="FILE")
    markdown: Path | None = option(None, "write a Markdown summary for CI", metavar="FILE")
    html: Path | None = option(
        None, "write a self-contained HTML report with charts", metavar="FILE", common=True
    )
    pdf: Path | None = option(None, "write the report as PDF (tpx[report])", metavar="FILE")
    step_summary: bool = option(False, "append the summary to $GITHUB_STEP_SUMMARY")

    def __post_init__(self) -> None:
        if self.profile_export_file is not None and self.profile_export_file.exists():
            refuse("--profile-export-file", "Path must not already exist.")
        seen: dict[Path, str] = {}
        for flag, path in self.files:
            target = path.absolute()
            if path.is_dir():
                raise UsageError(f"{flag} {path}: it is a directory; name a file in it")
            if not target.parent.is_dir():
                raise UsageError(f"{flag} {path}: there is no directory {target.parent}; create it first")
            if target in seen:
                raise UsageError(f"{flag} {path}: {seen[target]} writes the same file")
            seen[target] = flag

    @property
    def files(self) -> tuple[tuple[str, Path], ...]:
        """Files to write, with the flag that requests each."""
        named = ((field.spellings[-1], field.of(self)) for field in fields_of(OutputSpec))
        return tuple((flag, value) for flag, value in named if isinstance(value, Path))


DEFAULT_PORT = 8002
DEFAULT_PATH = "/metrics"


def parse_metrics_url(url: str) -> tuple[str, int, str]:
    """Return host, port and path of a value of --metrics-url. Raises UsageError."""
    if url.startswith("https://"):
        raise UsageError(f"--metrics-url {url}: metrics are read over http only")
    place, slash, rest = url.removeprefix("http://").partition("/")
    host, colon, port = place.rpartition(":")
    if not colon:
        host, port = place, "80" if url.startswith("http://") else str(DEFAULT_PORT)
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"--metrics-url {url}: does not match <host>:<port>/<path>")
    return host.strip("[]"), int(port), slash + rest or DEFAULT_PATH


def parse_metric(text: str) -> str:
    """Validate a regular expression for names of series."""
    try:
        re.compile(text)
    except re.error as exc:
        refuse("--metric", f"'{text}' is not a regular expression: {exc}.")
    return text


class ScrapeSpec(Options):
    """Options for the metrics page, its scrape interval, and the series to report."""

    collect_metrics: bool = option(
        False, "collect the server's Prometheus metrics during the measurement", common=True
    )
    metrics_url: str = option(
        "", "URL of the metrics (default: the server's host, port 8002, /metrics)", metavar="HOST:PORT/PATH"
    )
    metrics_interval: int | None = option(
        None, "milliseconds between two collections (default 1000)", metavar="MS"
    )
    metric: tuple[str, ...] = option(
        (),
        "report more series: a regular expression matched against name and labels (repeatable)",
        metavar="REGEX",
        parse=parse_metric,
    )

    def __post_init__(self) -> None:
        check_range(self, "metrics_interval", above=0, end=" msecs.")
        for name in ("metrics_url", "metrics_interval", "metric"):
            if name in given(self) and not self.collect_metrics:
                flag = flag_of(name)
                raise UsageError(f"Must specify --collect-metrics when using the {flag} option.")
        if self.metrics_url:
            self.address("")

    def address(self, host: str) -> MetricsAddress | None:
        """Return the metrics page, on the server's `host` unless a URL was given; None if metrics are off."""
        if not self.collect_metrics:
            return None
        port, path = DEFAULT_PORT, DEFAULT_PATH
        if self.metrics_url:
            host, port, path = parse_metrics_url(self.metrics_url)
        interval_s = (self.metrics_interval or 1000) / 1000
        return MetricsAddress(host=host, port=port, path=path, interval_s=interval_s, wanted=self.metric)
