"""The finished run that text, files and pages are made from, and the text printed around its levels.

In formats that scripts read, figures are whole microseconds, each truncated separately, and rates of six
digits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tpx.perf.clients.model import ModelDescription, ServerDescription
from tpx.perf.clients.transport import through
from tpx.perf.levels import CONCURRENCY, REQUEST_RATE, Level
from tpx.perf.options import SessionSpec
from tpx.perf.results import DataSummary, LevelResult, Verdict
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
    def by_load(self) -> tuple[LevelResult, ...]:
        """Levels in the order of their loads; a search measures them in another one."""
        return tuple(sorted(self.levels, key=lambda r: r.level.value))

    @property
    def summarized(self) -> tuple[LevelResult, ...]:
        """Levels as the summary lists them: as measured, like perf_analyzer, except for objectives."""
        return self.by_load if self.config.answers.slo else self.levels

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


def level_name(level: Level) -> str:
    """Return the name of a level in the summary: `Concurrency: 4`."""
    return f"{level.kind.label}: {rate(level.value)}"


def load_name(level: Level) -> str:
    """Return the name of a load within a sentence: `concurrency 16`, `request rate 250`."""
    return f"{level.kind.text} {rate(level.value)}"


_KINDS = {"inprocess": "TRITON_C_API", "tfserving": "TENSORFLOW_SERVING"}
"""perf_analyzer's names of service kinds, if they differ from ours."""


def data_line(data: DataSummary) -> str:
    """Return the line about the contents of a run's data files."""
    steps = f" with {data.steps} step/steps" if data.streams == 1 else ""
    return f" Successfully read data for {data.streams} stream/streams{steps}."


def settings_block(config: SessionSpec, model: ModelDescription, *, asynchronous: bool = False) -> str:
    """Return the settings of a measurement; `asynchronous` is that of its levels' rules."""
    kind = config.service.service_kind
    lines = ["*** Measurement Settings ***"]
    if kind == "triton" or config.inputs.batch_size != 1:
        lines.append(f"  Batch size: {config.inputs.batch_size}")
    lines.append(f"  Service Kind: {_KINDS.get(kind, kind.upper())}")
    if config.load.warmup_request_count:
        lines.append(f"  Sending {_format_count(config.load.warmup_request_count, 'warmup')}")
    lines += _describe_level_end(config, asynchronous=asynchronous)
    levels = config.levels
    if levels.listed or levels.end not in (None, 1):
        lines.append(f"  Latency limit: {config.windows.latency_threshold} msec")
        if levels.highest and levels.kind is CONCURRENCY:
            lines.append(f"  Concurrency limit: {levels.highest} concurrent requests")
        elif levels.highest:
            lines.append(f"  Request Rate limit: {rate(levels.highest)} requests per seconds")
    if levels.kind is REQUEST_RATE:
        distribution = config.pace.request_distribution
        shape = "uniform" if distribution == "constant" else distribution
        lines.append(f"  Using {shape} distribution on request generation")
    if levels.binary:
        lines.append("  Using Binary Search algorithm")
    lines.append(f"  Using {'a' if asynchronous else ''}synchronous calls for inference")
    if config.route.library is not None:
        lines.append(f"  Sending requests by {config.client}{through(config.route.proxy)}")
    if model.decoupled:
        lines.append("  Detected decoupled model, using the first response for measuring latency")
    return "\n".join(lines) + "\n"


def _format_count(count: int, kind: str) -> str:
    return f"{count} {kind} request{'' if count == 1 else 's'}"


def _describe_level_end(config: SessionSpec, *, asynchronous: bool) -> list[str]:
    """Return the lines about the end of a level."""
    if config.load.session_concurrency is not None:
        return ["  Sending every conversation of the input data once"]
    if config.load.request_count:
        return [f"  Sending {_format_count(config.load.request_count, 'benchmark')}"]
    percentile = config.level_settings.percentile
    # perf_analyzer prints no space after the percentile
    what = "average " if percentile is None else percentile_name(percentile)
    if not asynchronous:
        what += "latency and "
    return [
        f'  Using "{config.windows.measurement_mode}" mode for stabilization',
        f"  Stabilizing using {what}throughput",
        f"  Measurement window: {config.level_settings.interval_ms} msec"
        if config.windows.measurement_mode == "time_windows"
        else f"  Minimum number of samples in each window: {config.windows.measurement_request_count}",
    ]


def answer_line(report: Report) -> str:
    """Return the result of a binary search; empty without one."""
    config = report.config
    if not config.levels.binary:
        return ""
    limit = f"the latency limit of {config.windows.latency_threshold} msec"
    if report.answer is None:
        return f"No level of the range met {limit}.\n"
    return f"Highest load under {limit}: {level_name(report.answer)}\n"


def summary(results: Sequence[LevelResult]) -> str:
    """Return the summary of a run. A level that perf_analyzer would have left out carries its verdict."""
    if not results:
        return ""
    percentile = results[0].percentile
    name = "Average" if percentile is None else percentile_name(percentile)
    lines = [f"Inferences/Second vs. Client {name} Batch Latency"]
    for result in results:
        flag = ", interrupted" if result.interrupted else ""
        if not result.meets_limits:
            flag = f" ({result.verdict.value}{flag})"
        lines.append(
            f"{level_name(result.level)}, "
            f"throughput: {rate(result.throughput_infer_per_s)} infer/sec, "
            f"latency {usec(result.latency.at(percentile) if result.latency else 0)} usec{flag}"
        )
    return "\n".join(lines) + "\n"


def answers_text(report: Report) -> str:
    """Return the answers to the objectives; empty without objectives."""
    if not report.config.answers.slo:
        return ""
    objectives = ", ".join(o.text for o in report.config.answers.slo)
    answer = report.best
    lines = ["", f"SLO {objectives}: no measured load meets it."]
    if answer is not None:
        lines[1] = (
            f"SLO {objectives}: met up to {load_name(answer.level)}, {throughput(answer)} "
            f"(with {report.config.answers.slo_confidence * 100:g}% confidence)."
        )
    for result in report.by_load:
        told = [
            f"{a.objective.text} {a.outcome.value}: {a.objective.show(a.value)} ({a.reason})"
            for a in result.slo
        ]
        if result.verdict is Verdict.ERRORS and result.reason:
            told.append(result.reason)
        if result.falls_behind:
            told.append("falls behind, fewer answers came than requests were due")
        if result.failed and not any(a.objective.quantity == "error_rate" for a in result.slo):
            told.append(f"{result.failed} requests failed, which no objective limits")
        lines += [f"  {load_name(result.level)}: {text}" for text in told]
    return "\n".join(lines) + "\n"
