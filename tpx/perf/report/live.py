"""Live view of a run in a terminal, in plain lines, because drawing takes CPU time from the load."""

import math
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

from rich.text import Text

from tpx.perf.levels import Level, LevelRange
from tpx.perf.measure.rules import STABILITY_WINDOWS
from tpx.perf.observer import LevelProgress
from tpx.perf.options import SessionSpec
from tpx.perf.report.model import average_us, load_name
from tpx.perf.results import LevelResult, ServerBreakdown
from tpx.perf.statistics.intervals import t_quantile
from tpx.report.digits import latency, rounded
from tpx.report.text import sparkline

SHOWN_LEVELS = 8
LOOKS = 120
FEWEST_LOOKS = 3
MOST_PLANNED = 1000
_STYLES = {"ok": "green", "warn": "yellow", "bad": "bold red"}
_PARTS = (
    ("queue", "red"),
    ("input", "cyan"),
    ("compute", "blue"),
    ("output", "magenta"),
    ("rest", "bright_black"),
)


def sure(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the mean and the half-width of its 95% CI (Student's t); None for fewer than three values."""
    count = len(values)
    if count < FEWEST_LOOKS:
        return None
    mean = math.fsum(values) / count
    spread = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (count - 1))
    return mean, t_quantile(0.975, count - 1) * spread / math.sqrt(count)


def planned(levels: LevelRange) -> int | None:
    """Return the number of levels; None if it depends on results."""
    if not levels.listed and (levels.binary or levels.unbounded):
        return None
    return sum(1 for _ in islice(levels.values(), MOST_PLANNED))


class Dashboard:
    """Collects the progress of a run and renders it as lines of a given width."""

    def __init__(self, config: SessionSpec) -> None:
        self._config = config
        self._planned = None if config.answers.slo else planned(config.levels)
        self._level: Level | None = None
        self._begun_ns = 0
        self._level_begun_ns = 0
        self._took_ns: list[int] = []
        self._rates: deque[float] = deque(maxlen=LOOKS)
        self._latencies: dict[float, deque[float]] = {}
        self._results: list[LevelResult] = []
        self._progress: LevelProgress | None = None

    def level_started(self, level: Level, now_ns: int) -> None:
        self._begun_ns = self._begun_ns or now_ns
        self._level, self._level_begun_ns = level, now_ns
        self._rates.clear()
        self._latencies.clear()
        self._progress = None

    def add_progress(self, progress: LevelProgress) -> None:
        """Add a progress report."""
        warmed_up = self._progress is not None and not self._progress.window and progress.window
        if warmed_up:
            self._rates.clear()
            self._latencies.clear()
        self._progress = progress
        self._rates.append(progress.throughput_infer_per_s)
        for percentile, ns in progress.percentiles_ns.items():
            self._latencies.setdefault(percentile, deque(maxlen=LOOKS)).append(ns)

    def level_finished(self, result: LevelResult, now_ns: int) -> None:
        self._results.append(result)
        self._took_ns.append(now_ns - self._level_begun_ns)

    def text(self, width: int, now_ns: int) -> Text:
        """Return the whole view; no line is wider than `width`."""
        lines = [
            self._render_headline(now_ns),
            _render_gauge("infer/s", self._rates, rounded, width, "green"),
        ]
        lines += [
            _render_gauge(f"p{p:g}", values, latency, width, "cyan")
            for p, values in sorted(self._latencies.items())
        ]
        progress = self._progress
        if progress is not None and progress.server is not None and progress.server.success_count:
            lines.append(_render_server(progress.server, width))
        if progress is not None and progress.failed:
            line = Text(f"  {progress.failed:,} failed", "bold red")
            kinds = "; ".join(" ".join(kind.split()) for kind in progress.failures)
            lines.append(line.append(f"  {kinds}", "red"))
        if self._results:
            lines.append(Text(f"  {'load':<18}{'infer/s':>10}{'p50':>10}{'p99':>10}  verdict", "dim"))
        lines += map(_render_result, self._results[-SHOWN_LEVELS:])
        for line in lines:
            line.truncate(width, overflow="ellipsis")
        return Text("\n").join(lines)

    def left_ns(self, now_ns: int) -> int | None:
        """Return the estimated time left; None if unknown.

        Further levels are assumed to take as long as those before, or, before the first result, the
        minimum.
        """
        if self._planned is None or self._config.load.request_count:
            return None
        settings = self._config.level_settings
        floor_ns = settings.count_window_floor_ms * 1_000_000
        window_ns = floor_ns if settings.mode == "count_windows" else settings.window_ns
        windows = settings.fixed_windows or STABILITY_WINDOWS
        usual = int(settings.warmup_s * 1e9) + window_ns * windows
        if self._took_ns:
            usual = sum(self._took_ns) // len(self._took_ns)
        current_ns = max(0, usual - (now_ns - self._level_begun_ns))
        return current_ns + usual * max(0, self._planned - len(self._results) - 1)

    def _render_headline(self, now_ns: int) -> Text:
        level, progress = self._level, self._progress
        if level is None:
            return Text("connecting")
        number = len(self._results) + 1
        of = f" of {self._planned}" if self._planned else ""
        line = Text.assemble((load_name(level), "bold"), (f"  level {number}{of}", "dim"))
        if progress is not None and not progress.window:
            line.append("  warming up", "dim")
        elif progress is not None and not self._config.load.request_count:
            line.append(f"  window {progress.window}, at most {progress.max_windows}", "dim")
        line.append(f"  {_format_clock(now_ns - self._begun_ns)}", "dim")
        left = self.left_ns(now_ns)
        if left is not None:
            line.append(f"  about {_format_clock(left)} left", "dim")
        return line


def _format_clock(duration_ns: int) -> str:
    minutes, seconds = divmod(duration_ns // 1_000_000_000, 60)
    return f"{minutes}:{seconds:02d}"


def _render_gauge(
    name: str, values: Sequence[float], written: Callable[[float], str], width: int, style: str
) -> Text:
    """Return the last value, the mean with its interval, and a curve of the values that fit."""
    if not values:
        return Text("  no answers yet", "dim")
    found = sure(values)
    line = Text.assemble((f"  {name:<8}", "dim"), (f"{written(values[-1]):>10}", f"bold {style}"))
    mean = f"   mean {written(found[0])} \u00b1 {written(found[1])}" if found is not None else ""
    line.append(f"{mean:<32}", "dim")
    available = max(0, min(width - line.cell_len - 2, LOOKS))
    if available:
        line.append("  " + sparkline(list(values)[-available:]), style)
    return line


def _render_server(server: ServerBreakdown, width: int) -> Text:
    """Return the server's times in the last window, as numbers and as a bar."""
    total = average_us(server.success_ns, server.success_count)
    spent_ns = (
        server.queue_ns, server.compute_input_ns, server.compute_infer_ns, server.compute_output_ns
    )  # fmt: skip
    known = [average_us(ns, server.success_count) for ns in spent_ns]
    times = dict(zip((name for name, _ in _PARTS), (*known, max(0, total - sum(known))), strict=True))
    line = Text.assemble(("  server ", "dim"), f"{latency(total * 1000)}  ")
    for name, style in _PARTS:
        # in the unit and to the last digit of the sum
        text = f"{times[name]}" if total < 1000 else rounded(times[name] / 1000, total / 1000)
        if float(text.replace(",", "")):
            line.append(f"{name} {text}  ", style)
    line.append(f"batch {server.mean_batch:.2f}", "dim")
    available = min(40, width - line.cell_len - 2)
    whole = sum(times.values()) or 1
    if available > 10:
        line.append("  ")
        drawn = through = 0
        for name, style in _PARTS:
            through += times[name]
            until = available * through // whole
            line.append("\u2588" * (until - drawn), style)
            drawn = until
    return line


def _render_result(result: LevelResult) -> Text:
    times = result.latency
    p50, p99 = ("" if times is None else latency(times.at(p)) for p in (50.0, 99.0))
    through = rounded(result.throughput_infer_per_s)
    line = Text(f"  {load_name(result.level):<18}{through:>10}{p50:>10}{p99:>10}  ")
    return line.append(result.verdict.text, _STYLES[result.verdict.flag])
