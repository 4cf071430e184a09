"""One level as perf_analyzer prints it, and behind that what it does not know."""

from dataclasses import dataclass

from tpx.perf.latency import LatencySummary, reported_percentiles
from tpx.perf.report.beyond import beyond_lines
from tpx.perf.report.figures import level_title, percentile_name, rate, usec
from tpx.perf.report.server_text import metrics_lines, server_lines
from tpx.perf.results import ClientTimes, LevelResult, Window
from tpx.perf.self_check import BUSY_SHARE

DELAYED_LIMIT = 0.01
"""Share of requests that may be late before perf_analyzer says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the text of a level depends on beside its figures."""

    protocol: str = "http"
    with_engine: bool = False
    """The engine is in this process: there is no transport, and the processor works for both."""
    polls: bool = False
    """The client is busy because it polls."""
    decoupled: bool = False
    verbose: bool = False


def level_block(result: LevelResult, shown: Shown) -> str:
    """One level, with the line behind it that separates it from the next."""
    title = level_title(result.level)
    lines = [title] if title else []
    if shown.verbose:
        lines += [_pass_line(i, w) for i, w in enumerate(result.windows, 1)]
    lines += ["  Client: ", f"    Request count: {result.requests}"]
    if result.latency is not None and result.client is not None:
        lines += _client_lines(result, result.latency, shown)
        lines.append("    " + ("" if shown.decoupled else _time_line(result.client, shown)))
    lines += [f"    Errors: {e.count} x {e.code}: {e.message}" for e in result.errors]
    if result.server is not None:
        lines += ["  Server: ", *server_lines(result.server)]
    if result.metrics is not None:
        lines += metrics_lines(result.metrics)
    lines += beyond_lines(result)
    if result.client_busy > BUSY_SHARE and not (shown.with_engine or shown.polls):
        lines.append(
            f"[WARNING] The client was busy {result.client_busy * 100:.0f}% of the time: tpx perf is not "
            "able to keep up with the desired load. The results may not be accurate."
        )
    if lines[-1]:
        lines.append("")
    return "\n".join(lines) + "\n"


def _pass_line(number: int, window: Window) -> str:
    if window.latency is None:
        return f"  Pass [{number}] no valid requests ({window.failed} failed)"
    head = f"  Pass [{number}] throughput: {rate(window.throughput_infer_per_s)} infer/sec. "
    latency, percentile = window.latency, window.stabilizing_percentile
    if percentile is None:
        return f"{head}Avg latency: {usec(latency.mean_ns)} usec (std {usec(latency.std_ns)} usec). "
    return f"{head}{percentile_name(percentile)} latency: {usec(latency.at(percentile))} usec"


def _client_lines(result: LevelResult, latency: LatencySummary, shown: Shown) -> list[str]:
    lines = _late_lines(result)
    if result.sequences is not None:
        per_s = result.sequences * 1e9 / max(result.duration_ns, 1)
        lines.append(f"    Sequence count: {result.sequences} ({rate(per_s)} seq/sec)")
    lines.append(f"    Throughput: {rate(result.throughput_infer_per_s)} infer/sec")
    if shown.decoupled and result.streaming is not None:
        lines.append(f"    Response Throughput: {rate(result.streaming.responses_per_s)} infer/sec")
    if shown.verbose:
        whose = "client and engine busy" if shown.with_engine else "client overhead"
        lines.append(f"    Avg {whose}: {result.client_busy * 100:.2f}%")
    if result.percentile is None:
        lines.append(
            f"    Avg latency: {usec(latency.mean_ns)} usec (standard deviation {usec(latency.std_ns)} usec)"
        )
    lines += [
        f"    {percentile_name(p)} latency: {usec(latency.at(p))} usec"
        for p in reported_percentiles(result.percentile)
    ]
    return lines


def _late_lines(result: LevelResult) -> list[str]:
    pace = result.open_loop
    if pace is None or not pace.delayed > DELAYED_LIMIT * pace.slip.count:
        return []
    return [
        f"    Avg send request rate: {pace.sent_per_s:.2f} infer/sec",
        "    [WARNING] Perf Analyzer was not able to keep up with the desired request rate. "
        f"{100 * pace.delayed / pace.slip.count:.2f}% of the requests were delayed. ",
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Words:
    """What the parts of a request's time are called."""

    way: str
    send: str
    receive: str
    both: str


_HTTP = _Words(way="HTTP", send="send", receive="receive", both="send/recv")
_GRPC = _Words(way="gRPC", send="marshal", receive="unmarshal", both="(un)marshal request/response")
_ENGINE = _Words(way="engine", send="submit", receive="take", both="submit/take")


def _time_line(client: ClientTimes, shown: Shown) -> str:
    send, wait, receive = usec(client.send_ns), usec(client.wait_ns), usec(client.receive_ns)
    both = usec(client.send_ns + client.receive_ns)
    words = _ENGINE if shown.with_engine else _GRPC if shown.protocol == "grpc" else _HTTP
    parts = (
        f"({words.send} {send} usec + response wait {wait} usec + {words.receive} {receive} usec)"
        if shown.verbose
        else f"({words.both} {both} usec + response wait {wait} usec)"
    )
    return f"Avg {words.way} time: {usec(client.total_ns)} usec {parts}"
