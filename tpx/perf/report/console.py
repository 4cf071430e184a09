"""Text that `tpx perf` prints around the levels of a run: settings, plan, summary and answers."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from tpx.perf.answers.knee import Knee, Scalability, find_knee
from tpx.perf.clients.model import ModelDescription
from tpx.perf.connecting import ConnectedModel
from tpx.perf.levels import CONCURRENCY, REQUEST_RATE, Level, LevelRange, level_number
from tpx.perf.options import SessionSpec
from tpx.perf.report.figures import level_name, load_name, percentile_name, rate, usec
from tpx.perf.report.model import Report
from tpx.perf.results import DataSummary, LevelResult, Validity, Verdict
from tpx.perf.settings import LevelSettings

if TYPE_CHECKING:
    from tpx.perf.probe import Probe  # which reads the answers of every transport
from tpx.report.digits import latency, rounded

_KINDS = {"inprocess": "TRITON_C_API", "tfserving": "TENSORFLOW_SERVING"}
"""Where perf_analyzer has another name than ours."""


def data_line(data: DataSummary) -> str:
    """Return what a run's files hold."""
    steps = f" with {data.steps} step/steps" if data.streams == 1 else ""
    return f" Successfully read data for {data.streams} stream/streams{steps}."


def settings_block(config: SessionSpec, model: ModelDescription, *, asynchronous: bool = False) -> str:
    """Return what is going to be measured, and how; `asynchronous` as the rules of its levels have it."""
    kind = config.service.service_kind
    lines = ["*** Measurement Settings ***"]
    if kind == "triton" or config.inputs.batch_size != 1:
        lines.append(f"  Batch size: {config.inputs.batch_size}")
    lines.append(f"  Service Kind: {_KINDS.get(kind, kind.upper())}")
    if config.load.warmup_request_count:
        lines.append(f"  Sending {_requests(config.load.warmup_request_count, 'warmup')}")
    lines += _course_lines(config, asynchronous=asynchronous)
    levels = config.levels
    if levels.listed or levels.end not in (None, 1):
        lines.append(f"  Latency limit: {config.windows.latency_threshold} msec")
        if levels.highest and levels.kind is CONCURRENCY:
            lines.append(f"  Concurrency limit: {levels.highest} concurrent requests")
        elif levels.highest:
            lines.append(f"  Request Rate limit: {rate(levels.highest)} requests per seconds")
    if levels.kind is REQUEST_RATE:
        distribution = "poisson" if config.mlperf.scenario == "server" else config.pace.request_distribution
        shape = "uniform" if distribution == "constant" else distribution
        lines.append(f"  Using {shape} distribution on request generation")
    if levels.binary:
        lines.append("  Using Binary Search algorithm")
    lines.append(f"  Using {'a' if asynchronous else ''}synchronous calls for inference")
    if model.decoupled:
        lines.append("  Detected decoupled model, using the first response for measuring latency")
    return "\n".join(lines) + "\n"


def _scenario_lines(config: SessionSpec) -> list[str]:
    lines = [f"  MLPerf scenario: {config.mlperf.scenario}"]
    if config.mlperf.scenario == "offline":
        return [*lines, f"  Samples of its one query: {config.mlperf.offline_samples}"]
    if config.mlperf.scenario == "multi-stream":
        lines.append(f"  Samples of a query: {config.mlperf.samples_per_query}")
    return [
        *lines,
        f"  Minimum duration: {config.mlperf.min_duration:g} sec",
        f"  Minimum number of queries: {config.mlperf.min_query_count}",
    ]


def _requests(count: int, kind: str) -> str:
    return f"{count} {kind} request{'' if count == 1 else 's'}"


def _course_lines(config: SessionSpec, *, asynchronous: bool) -> list[str]:
    """Return what ends a level."""
    if config.mlperf.scenario:
        return _scenario_lines(config)
    if config.load.session_concurrency is not None:
        return ["  Sending every conversation of the input data once"]
    if config.load.request_count:
        return [f"  Sending {_requests(config.load.request_count, 'benchmark')}"]
    return _windows_lines(config, asynchronous=asynchronous)


def _windows_lines(config: SessionSpec, *, asynchronous: bool) -> list[str]:
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
    """Return what a binary search found; empty where nothing was searched."""
    config = report.config
    if not config.levels.binary:
        return ""
    limit = f"the latency limit of {config.windows.latency_threshold} msec"
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


def answers_text(report: Report) -> str:
    """Return the answers that were asked for beside figures; empty where none were."""
    lines: list[str] = []
    for result in report.levels:
        if result.validity is not None:
            lines += _scenario(report.config.mlperf.scenario, result, result.validity)
    if report.config.answers.slo:
        lines += _objectives(report)
    if report.config.answers.knee:
        lines += _knee(find_knee(report.levels))
    return "\n".join(lines) + "\n" if lines else ""


def _scenario(name: str, result: LevelResult, validity: Validity) -> list[str]:
    head = f"MLPerf {name}, {load_name(result.level)}: {'VALID' if validity.valid else 'INVALID'}"
    lines = ["", head]
    if validity.estimate_ns is not None and result.percentile is not None:
        estimate = latency(validity.estimate_ns)
        lines.append(f"  p{result.percentile:g} is at most {estimate}, with 99% confidence")
    for condition in validity.conditions:
        advice = f" ({condition.advice})" if condition.advice else ""
        lines.append(f"  {condition.name}: {'yes' if condition.kept else 'NO'}{advice}")
    return lines


def _objectives(report: Report) -> list[str]:
    asked = ", ".join(o.text for o in report.config.answers.slo)
    answer = next((r for r in report.levels if r.level == report.answer), None)
    if answer is None:
        head = f"SLO {asked}: no measured load meets it."
    else:
        head = (
            f"SLO {asked}: met up to {load_name(answer.level)}, "
            f"{rounded(answer.throughput_infer_per_s)} infer/s "
            f"(with {report.config.answers.slo_confidence * 100:g}% confidence)."
        )
    lines = ["", head]
    for result in sorted(report.levels, key=lambda r: r.level.value):
        lines += [
            f"  {load_name(result.level)}: {a.objective.text} {a.outcome.value}: "
            f"{a.objective.show(a.value)} ({a.reason})"
            for a in result.slo
        ]
        if result.verdict is Verdict.ERRORS and result.reason:
            lines.append(f"  {load_name(result.level)}: {result.reason}")
        if result.falls_behind:
            lines.append(
                f"  {load_name(result.level)}: falls behind, fewer answers came than requests were due"
            )
        if result.failed and not any(a.objective.quantity == "error_rate" for a in result.slo):
            lines.append(
                f"  {load_name(result.level)}: {result.failed} requests failed, which no objective limits"
            )
    return lines


def _knee(knee: Knee) -> list[str]:
    lines = ["", "Knee:"]
    for what, result in (
        ("throughput bends (Kneedle)", knee.bend),
        ("highest throughput per latency", knee.power),
        ("last level whose further load paid", knee.worthwhile),
    ):
        lines.append(f"  {what}: {_point(result)}")
    return [*lines, *_model(knee.model)]


def _point(result: LevelResult | None) -> str:
    if result is None:
        return "not to be told from these levels"
    return f"{load_name(result.level)}, {rounded(result.throughput_infer_per_s)} infer/s"


def _model(model: Scalability | None) -> Sequence[str]:
    if model is None:
        return ["  universal scalability law: four concurrency levels are needed"]
    peak = (
        f"peak of {rounded(model.peak_throughput)} infer/s at concurrency {model.peak_load:.0f}"
        if model.peak_load is not None
        else f"no peak, throughput approaches {rounded(model.peak_throughput)} infer/s"
    )
    return [
        f"  universal scalability law: {peak} (contention {model.contention:.4g}, coherency "
        f"{model.coherency:.4g}, fit error {model.fit_error * 100:.1f}%)"
    ]


SHOWN_LEVELS = 16


def plan_text(config: SessionSpec, connected: ConnectedModel, settings: LevelSettings, probe: "Probe") -> str:
    """The plan of a run and what its probe request gave, one thing a line."""
    lines = [*_target(config, connected), *_data(config, connected), *_load(config, settings), *_probe(probe)]
    return "".join(line.rstrip() + "\n" for line in lines)


def _target(config: SessionSpec, connected: ConnectedModel) -> Iterator[str]:
    model, server = connected.model, connected.server
    version = f", version {config.target.model_version}" if config.target.model_version else ""
    decoupled = ", decoupled" if model.decoupled else ""
    service = f"{config.service.service_kind} over {config.target.protocol}"
    yield f"Server: {server.name} {server.version} at {config.address}, {service}"
    yield (
        f"Model: {model.name}{version} ({model.platform or 'unknown platform'}), max_batch_size "
        f"{model.max_batch_size}, scheduler {model.scheduler}{decoupled}"
    )


def _data(config: SessionSpec, connected: ConnectedModel) -> Iterator[str]:
    data = connected.requests.data
    where = ", ".join(map(str, config.inputs.files)) or config.inputs.kind
    streams = f"{data.streams} stream{'s' if data.streams != 1 else ''}"
    yield f"Data: {where}: {streams} with {data.steps} step{'s' if data.steps != 1 else ''}"
    sources = config.inputs.sources
    for tensor in data.tensors:
        source = f", {sources[tensor.name]}" if tensor.name in sources else ""
        yield f"  {tensor.name} {tensor.datatype} {list(tensor.shape)}{source}"
    if connected.sequences:
        sequences, length = config.sequences, "as long as their streams"
        if sequences.fixed or not config.inputs.files:
            length = f"of {sequences.length} requests +- {sequences.sequence_length_variation:g}%"
        ids = sequences.sequence_id_range
        yield f"Sequences: {length}, ids {ids.first} to before {ids.end}"
    if connected.conversations:
        yield f"Conversations: {len(connected.conversations)}, each sent once"
    if config.inputs.shared_memory != "none":
        yield f"Shared memory: {config.inputs.shared_memory}"
    if connected.feed.check is not None:
        yield f"Outputs: compared with validation_data, {config.inputs.tolerance or 'exactly'}"


def _load(config: SessionSpec, settings: LevelSettings) -> Iterator[str]:
    levels = config.levels
    yield f"Load: {levels.mode} {levels}"
    if settings.warmup_requests:
        yield f"  {settings.warmup_requests} warmup requests before each level"
    if settings.request_count:
        yield f"  {settings.request_count} requests in each level"
    elif settings.mode == "count_windows":
        yield f"  windows of at least {settings.window_requests} requests, at most {settings.max_windows}"
    else:
        yield f"  windows of {settings.window_ns / 1e9:g} s, at most {settings.max_windows} in each level"
    yield f"Seed: {config.inputs.seed}"
    for value in _first_levels(levels):
        level = Level(levels.mode, value)
        yield f"  {level}: seed {level_number(config.inputs.seed, level)}"


def _first_levels(levels: LevelRange) -> Iterator[float]:
    """Return the levels that are certain to come, as far as they are not too many."""
    searched = not levels.listed and (levels.binary or levels.unbounded)
    return islice(levels.values(), 1 if searched else SHOWN_LEVELS)


def _probe(probe: "Probe") -> Iterator[str]:
    if probe.error:
        yield f"Probe: failed after {latency(probe.latency_ns)}: {probe.error}"
        return
    several = f", {probe.responses} responses" if probe.responses > 1 else ""
    yield f"Probe: answered in {latency(probe.latency_ns)}{several}"
    for output in probe.outputs:
        verdict = f" ({output.wrong})" if output.wrong else ""
        yield f"  {output.name} {output.datatype} {list(output.shape)}{verdict}"
    if probe.mismatch:
        yield f"  not as expected: {probe.mismatch}"
