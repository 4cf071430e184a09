"""Text that `tpx perf` prints around the levels of a run: settings, plan, summary and answers."""

from collections.abc import Sequence

from tpx.perf.clients.model import ModelDescription
from tpx.perf.levels import CONCURRENCY, REQUEST_RATE
from tpx.perf.options import SessionSpec
from tpx.perf.report.model import Report, level_name, load_name, percentile_name, rate, throughput, usec
from tpx.perf.results import DataSummary, LevelResult, Verdict

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
            f"latency {usec(result.stabilizing_latency_ns)} usec{flag}"
        )
    return "\n".join(lines) + "\n"


def answers_text(report: Report) -> str:
    """Return the requested answers besides figures; empty if none were requested."""
    lines: list[str] = []
    if report.config.answers.slo:
        lines += _describe_objectives(report)
    return "\n".join(lines) + "\n" if lines else ""


def _describe_objectives(report: Report) -> list[str]:
    objectives = ", ".join(o.text for o in report.config.answers.slo)
    answer = next((r for r in report.levels if r.level == report.answer), None)
    lines = ["", f"SLO {objectives}: no measured load meets it."]
    if answer is not None:
        lines[1] = (
            f"SLO {objectives}: met up to {load_name(answer.level)}, {throughput(answer)} "
            f"(with {report.config.answers.slo_confidence * 100:g}% confidence)."
        )
    for result in sorted(report.levels, key=lambda r: r.level.value):
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
    return lines
