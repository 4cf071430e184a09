"""A run as perf_analyzer prints it: settings, one block a level, the summary.

Numbers of level blocks are whole microseconds, each truncated by itself, and rates have six significant
digits, because scripts read them.
"""

from collections.abc import Sequence

from tpx.perf.latency import reported_percentiles
from tpx.perf.options import PerfConfig
from tpx.perf.report.model import Report
from tpx.perf.results import ClientTimes, LevelResult, ServerBreakdown, Window
from tpx.perf.settings import Level

BUSY_LIMIT = 0.9
"""Share of its processor above which the client itself is taken to have slowed the measurement."""


def usec(duration_ns: float) -> int:
    """Whole microseconds, truncated."""
    return int(duration_ns) // 1000


def rate(value: float) -> str:
    """A rate as C++ prints a double: six significant digits."""
    return f"{value:.6g}"


def percentile_name(percentile: float) -> str:
    """p99, p99.9"""
    return f"p{percentile:g}"


def settings_block(config: PerfConfig) -> str:
    """What is going to be measured, and how."""
    lines = ["*** Measurement Settings ***", f"  Batch size: {config.batch_size}", "  Service Kind: TRITON"]
    if config.warmup_request_count:
        lines.append(f"  Sending {_requests(config.warmup_request_count, 'warmup')}")
    if config.request_count:
        lines.append(f"  Sending {_requests(config.request_count, 'benchmark')}")
    else:
        lines += _windows_lines(config)
    levels = config.levels
    if levels.end is not None or levels.listed:
        lines.append(f"  Latency limit: {config.latency_threshold} msec")
        if levels.highest and levels.mode == "concurrency":
            lines.append(f"  Concurrency limit: {levels.highest} concurrent requests")
        elif levels.highest:
            lines.append(f"  Request Rate limit: {rate(levels.highest)} requests per seconds")
    if levels.mode == "request_rate":
        distribution = config.request_distribution
        kind = "uniform" if distribution == "constant" else distribution
        lines.append(f"  Using {kind} distribution on request generation")
    if levels.binary:
        lines.append("  Using Binary Search algorithm")
    lines.append("  Using synchronous calls for inference")
    return "\n".join(lines) + "\n"


def _requests(count: int, kind: str) -> str:
    return f"{count} {kind} request{'' if count == 1 else 's'}"


def _windows_lines(config: PerfConfig) -> list[str]:
    percentile = config.level_settings.percentile
    # perf_analyzer prints no space after the percentile
    what = "average latency" if percentile is None else f"{percentile_name(percentile)}latency"
    return [
        f'  Using "{config.measurement_mode}" mode for stabilization',
        f"  Stabilizing using {what} and throughput",
        f"  Measurement window: {config.measurement_interval} msec"
        if config.measurement_mode == "time_windows"
        else f"  Minimum number of samples in each window: {config.measurement_request_count}",
    ]


def level_title(level: Level) -> str:
    """What stands above a level's figures."""
    if level.mode in ("request_rate", "custom_intervals"):
        return f"Request Rate: {rate(level.value)} inference requests per second"
    if level.mode == "concurrency":
        return f"Request concurrency: {level.value}"
    return f"{level.mode.replace('_', ' ').capitalize()}: {rate(level.value)}"


def level_name(level: Level) -> str:
    """What stands before a level in the summary."""
    name = "Concurrency" if level.mode == "concurrency" else "Request Rate"
    return f"{name}: {rate(level.value)}"


def answer_line(report: Report) -> str:
    """What a binary search found; empty where nothing was searched."""
    config = report.config
    if not config.levels.binary:
        return ""
    limit = f"the latency limit of {config.latency_threshold} msec"
    if report.answer is None:
        return f"No level of the range met {limit}.\n"
    return f"Highest load under {limit}: {level_name(report.answer)}\n"


def level_block(result: LevelResult, protocol: str, *, verbose: bool) -> str:
    """One level; `protocol` is http or grpc."""
    lines = [level_title(result.level)]
    if verbose:
        lines += [_pass_line(i, w) for i, w in enumerate(result.windows, 1)]
    lines += ["  Client: ", f"    Request count: {result.requests}"]
    if result.latency is not None and result.client is not None:
        lines += _client_lines(result, verbose=verbose)
        lines.append("    " + _time_line(protocol, result.client, verbose=verbose))
    lines += [f"    Errors: {e.count} x {e.code}: {e.message}" for e in result.errors]
    if result.server is not None:
        lines += ["  Server: ", *_server_lines(result.server, "    ")]
    if result.client_busy > BUSY_LIMIT:
        lines.append(
            f"[WARNING] The client was busy {result.client_busy * 100:.0f}% of the time: tpx perf is not "
            "able to keep up with the desired load. The results may not be accurate."
        )
    return "\n".join(lines) + "\n"


def _pass_line(number: int, window: Window) -> str:
    if window.latency is None:
        return f"  Pass [{number}] no valid requests ({window.failed} failed)"
    head = f"  Pass [{number}] throughput: {rate(window.throughput_infer_per_s)} infer/sec. "
    latency, percentile = window.latency, window.stabilizing_percentile
    if percentile is None:
        return f"{head}Avg latency: {usec(latency.mean_ns)} usec (std {usec(latency.std_ns)} usec). "
    return f"{head}{percentile_name(percentile)} latency: {usec(latency.at(percentile))} usec"


def _client_lines(result: LevelResult, *, verbose: bool) -> list[str]:
    latency = result.latency
    if latency is None:
        return []
    lines = [f"    Throughput: {rate(result.throughput_infer_per_s)} infer/sec"]
    if verbose:
        lines.append(f"    Avg client overhead: {result.client_busy * 100:.2f}%")
    if result.percentile is None:
        lines.append(
            f"    Avg latency: {usec(latency.mean_ns)} usec (standard deviation {usec(latency.std_ns)} usec)"
        )
    lines += [
        f"    {percentile_name(p)} latency: {usec(latency.at(p))} usec"
        for p in reported_percentiles(result.percentile)
    ]
    return lines


def _time_line(protocol: str, client: ClientTimes, *, verbose: bool) -> str:
    send, wait, receive = usec(client.send_ns), usec(client.wait_ns), usec(client.receive_ns)
    both = usec(client.send_ns + client.receive_ns)
    name, sent, received, short = (
        ("HTTP", "send", "receive", "send/recv")
        if protocol == "http"
        else ("gRPC", "marshal", "unmarshal", "(un)marshal request/response")
    )
    parts = (
        f"({sent} {send} usec + response wait {wait} usec + {received} {receive} usec)"
        if verbose
        else f"({short} {both} usec + response wait {wait} usec)"
    )
    return f"Avg {name} time: {usec(client.total_ns)} usec {parts}"


def _server_lines(server: ServerBreakdown, indent: str) -> list[str]:
    if server.success_count == 0:
        return [f"{indent}Request count: 0"]
    lines = [
        f"{indent}Inference count: {server.inference_count}",
        f"{indent}Execution count: {server.execution_count}",
    ]
    if server.response_cache:
        lines += [
            f"{indent}Cache hit count: {server.cache_hit_count}",
            f"{indent}Cache miss count: {server.cache_miss_count}",
        ]
    lines.append(f"{indent}Successful request count: {server.success_count}")
    total = server.success_ns // (server.success_count * 1000)
    request = f"{indent}Avg request latency: {total} usec "
    if server.composing:
        queue = sum(_leaves(server, "queue"))
        compute = sum(_leaves(server, "compute"))
        over = max(0, total - queue - compute)
        lines.append(f"{request}(overhead {over} usec + queue {queue} usec + compute {compute} usec)")
        lines += ["", f"{indent[2:]}Composing models: "]
        for part in server.composing:
            lines.append(f"{indent[2:]}{part.model}, version: {part.version}")
            lines += _server_lines(part, indent + "  ")
        return lines
    return [*lines, request + _parts(server, total)]


def _parts(server: ServerBreakdown, total_us: int) -> str:
    queue = average_us(server.queue_ns, server.queue_count)
    if server.response_cache:
        answered = server.compute_count + server.cache_hit_count
        spent_ns = server.cache_hit_ns + server.cache_miss_ns + server.compute_ns
        cache = average_us(spent_ns, answered)
        over = max(0, total_us - queue - cache)
        return f"(overhead {over} usec + queue {queue} usec + cache hit/miss {cache} usec)"
    steps = [
        average_us(ns, server.compute_count)
        for ns in (server.compute_input_ns, server.compute_infer_ns, server.compute_output_ns)
    ]
    over = max(0, total_us - queue - average_us(server.compute_ns, server.compute_count))
    return (
        f"(overhead {over} usec + queue {queue} usec + compute input {steps[0]} usec + "
        f"compute infer {steps[1]} usec + compute output {steps[2]} usec)"
    )


def average_us(total_ns: int, count: int) -> int:
    """Whole microseconds of each of `count`; 0 of none."""
    return total_ns // (count * 1000) if count else 0


def _leaves(server: ServerBreakdown, what: str) -> list[int]:
    """Average queue or compute time of every model at the bottom of an ensemble."""
    if server.composing:
        return [value for part in server.composing for value in _leaves(part, what)]
    if what == "queue":
        return [average_us(server.queue_ns, server.queue_count)]
    return [average_us(server.compute_ns, server.compute_count)]


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
