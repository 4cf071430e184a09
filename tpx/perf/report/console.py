"""What perf_analyzer prints around the levels of a run: its settings before, its summary behind."""

from collections.abc import Sequence

from tpx.perf.clients.model import ModelDescription
from tpx.perf.levels import CONCURRENCY, REQUEST_RATE
from tpx.perf.options import PerfConfig
from tpx.perf.report.figures import level_name, percentile_name, rate, usec
from tpx.perf.report.model import Report
from tpx.perf.results import DataSummary, LevelResult

_KINDS = {"inprocess": "TRITON_C_API", "tfserving": "TENSORFLOW_SERVING"}
"""Where perf_analyzer has another name than ours."""


def data_line(data: DataSummary) -> str:
    """What a run's files hold."""
    steps = f" with {data.steps} step/steps" if data.streams == 1 else ""
    return f" Successfully read data for {data.streams} stream/streams{steps}."


def settings_block(config: PerfConfig, model: ModelDescription, *, asynchronous: bool = False) -> str:
    """What is going to be measured, and how; `asynchronous` as the rules of its levels have it."""
    kind = config.service_kind
    lines = ["*** Measurement Settings ***"]
    if kind == "triton" or config.batch_size != 1:
        lines.append(f"  Batch size: {config.batch_size}")
    lines.append(f"  Service Kind: {_KINDS.get(kind, kind.upper())}")
    if config.warmup_request_count:
        lines.append(f"  Sending {_requests(config.warmup_request_count, 'warmup')}")
    lines += _course_lines(config, asynchronous=asynchronous)
    levels = config.levels
    if levels.listed or levels.end not in (None, 1):
        lines.append(f"  Latency limit: {config.latency_threshold} msec")
        if levels.highest and levels.kind is CONCURRENCY:
            lines.append(f"  Concurrency limit: {levels.highest} concurrent requests")
        elif levels.highest:
            lines.append(f"  Request Rate limit: {rate(levels.highest)} requests per seconds")
    if levels.kind is REQUEST_RATE:
        distribution = "poisson" if config.scenario == "server" else config.request_distribution
        shape = "uniform" if distribution == "constant" else distribution
        lines.append(f"  Using {shape} distribution on request generation")
    if levels.binary:
        lines.append("  Using Binary Search algorithm")
    lines.append(f"  Using {'a' if asynchronous else ''}synchronous calls for inference")
    if model.decoupled:
        lines.append("  Detected decoupled model, using the first response for measuring latency")
    return "\n".join(lines) + "\n"


def _scenario_lines(config: PerfConfig) -> list[str]:
    lines = [f"  MLPerf scenario: {config.scenario}"]
    if config.scenario == "offline":
        return [*lines, f"  Samples of its one query: {config.offline_samples}"]
    if config.scenario == "multi-stream":
        lines.append(f"  Samples of a query: {config.samples_per_query}")
    return [
        *lines,
        f"  Minimum duration: {config.min_duration:g} sec",
        f"  Minimum number of queries: {config.min_query_count}",
    ]


def _requests(count: int, kind: str) -> str:
    return f"{count} {kind} request{'' if count == 1 else 's'}"


def _course_lines(config: PerfConfig, *, asynchronous: bool) -> list[str]:
    """What ends a level."""
    if config.scenario:
        return _scenario_lines(config)
    if config.session_concurrency is not None:
        return ["  Sending every conversation of the input data once"]
    if config.request_count:
        return [f"  Sending {_requests(config.request_count, 'benchmark')}"]
    return _windows_lines(config, asynchronous=asynchronous)


def _windows_lines(config: PerfConfig, *, asynchronous: bool) -> list[str]:
    percentile = config.level_settings.percentile
    # perf_analyzer prints no space after the percentile
    what = "average " if percentile is None else percentile_name(percentile)
    if not asynchronous:
        what += "latency and "
    return [
        f'  Using "{config.measurement_mode}" mode for stabilization',
        f"  Stabilizing using {what}throughput",
        f"  Measurement window: {config.level_settings.interval_ms} msec"
        if config.measurement_mode == "time_windows"
        else f"  Minimum number of samples in each window: {config.measurement_request_count}",
    ]


def answer_line(report: Report) -> str:
    """What a binary search found; empty where nothing was searched."""
    config = report.config
    if not config.levels.binary:
        return ""
    limit = f"the latency limit of {config.latency_threshold} msec"
    if report.answer is None:
        return f"No level of the range met {limit}.\n"
    return f"Highest load under {limit}: {level_name(report.answer)}\n"


def summary(results: Sequence[LevelResult]) -> str:
    """The last lines of a run; a level that perf_analyzer would have left out carries its verdict."""
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
            f"latency {usec(result.stabilizing_latency_ns)} usec{flag}"
        )
    return "\n".join(lines) + "\n"
