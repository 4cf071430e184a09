"""perf_analyzer's CSV: a row per level that met the limits, and a file per model of an ensemble."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tpx.perf.levels import CONCURRENCY
from tpx.perf.metrics.figures import GpuFigures, MetricsFigures
from tpx.perf.report.figures import average_us, percentile_name, rate, usec
from tpx.perf.report.level_text import composing_in_order, has_response_cache
from tpx.perf.results import ClientTimes, LevelResult, ServerBreakdown
from tpx.perf.statistics.latency import LatencySummary, reported_percentiles


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvOptions:
    """Which columns there are beside those that the levels themselves call for."""

    verbose: bool = False
    decoupled: bool = False
    metrics: bool = False
    """Whether the server's metrics were collected; only the verbose file has them."""


def csv_text(results: Sequence[LevelResult], options: CsvOptions) -> str:
    """The file's content; the header alone where no level met the limits.

    Columns and their arithmetic are perf_analyzer's (report_writer.cc): latencies in whole microseconds, no
    quoting.
    """
    rows = _rows(results)
    columns = _Columns(rows or results, options)
    lines = [",".join(columns.header())]
    lines += [
        ",".join(map(str, columns.row(r, r.latency, r.client)))
        for r in rows
        if r.latency is not None and r.client is not None
    ]
    return "\n".join(lines) + "\n"


def composing_files(results: Sequence[LevelResult], path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files of an ensemble's models beside that at `path`: `NAME_vVERSION.` before its name."""
    rows = _rows(results)
    servers = [r.server for r in rows if r.server is not None]
    parts = {(p.model, p.version) for server in servers for p in server.composing}
    caching = any(has_response_cache(server) for server in servers)
    for model, version in sorted(parts):
        lines = [",".join(_composing_header(rows, caching=caching))]
        for result in rows:
            part = _part(result.server, model, version)
            if part is not None and result.server is not None:
                values = _composing_row(result, result.server, part, caching=caching)
                lines.append(",".join(map(str, values)))
        yield path.with_name(f"{model}_v{version}.{path.name}"), "\n".join(lines) + "\n"


def _rows(results: Sequence[LevelResult]) -> list[LevelResult]:
    good = [r for r in results if r.meets_limits and r.latency is not None]
    return sorted(good, key=lambda r: r.throughput_infer_per_s)


def _level_column(results: Sequence[LevelResult]) -> str:
    return results[0].level.kind.column if results else CONCURRENCY.column


_COMPUTE = ["Server Compute Input", "Server Compute Infer", "Server Compute Output"]
_CACHE = ["Server Cache Hit", "Server Cache Miss"]


def _server_names(*, caching: bool) -> list[str]:
    return ["Network+Server Send/Recv", "Server Queue", *_COMPUTE, *(_CACHE if caching else [])]


def _server_values(server: ServerBreakdown, *, caching: bool) -> list[int]:
    values = [average_us(server.queue_ns, server.queue_count)]
    values += [
        average_us(ns, server.compute_count)
        for ns in (server.compute_input_ns, server.compute_infer_ns, server.compute_output_ns)
    ]
    if caching:
        values.append(average_us(server.cache_hit_ns, server.cache_hit_count))
        values.append(average_us(server.cache_miss_ns, server.cache_miss_count))
    return values


class _Columns:
    def __init__(self, results: Sequence[LevelResult], options: CsvOptions) -> None:
        servers = [r.server for r in results if r.server is not None]
        self._level = _level_column(results)
        self._percentile = results[0].percentile if results else None
        self._with_server = bool(servers)
        self._caching = any(has_response_cache(s) for s in servers)
        self._options = options

    def header(self) -> list[str]:
        names = [self._level, "Inferences/Second"]
        if self._options.decoupled:
            names.append("Response Throughput")
        names.append("Client Send")
        if self._with_server:
            names += _server_names(caching=self._caching)
        names.append("Client Recv")
        names += [f"{percentile_name(p)} latency" for p in reported_percentiles(self._percentile)]
        if self._options.verbose:
            if self._percentile is None:
                names.append("Avg latency")
            names += ["request/response", "response wait"]
            if self._options.metrics:
                names += [title for title, _ in _GPU_COLUMNS]
        return names

    def row(self, result: LevelResult, latency: LatencySummary, client: ClientTimes) -> list[object]:
        values: list[object] = [rate(result.level.value), rate(result.throughput_infer_per_s)]
        if self._options.decoupled:
            values.append(rate(result.streaming.responses_per_s if result.streaming else 0.0))
        values.append(usec(client.send_ns))
        if self._with_server:
            server = result.server or ServerBreakdown(model="", version="")
            values += [usec(result.network_ns), *_server_values(server, caching=self._caching)]
        values.append(usec(client.receive_ns))
        values += [usec(latency.at(p)) for p in reported_percentiles(self._percentile)]
        if self._options.verbose:
            values += self._verbose(result.metrics, latency, client)
        return values

    def _verbose(
        self, metrics: MetricsFigures | None, latency: LatencySummary, client: ClientTimes
    ) -> list[object]:
        values: list[object] = [usec(latency.mean_ns)] if self._percentile is None else []
        values += [usec(client.send_ns + client.receive_ns), usec(client.wait_ns)]
        if self._options.metrics:
            gpus = metrics.gpus if metrics is not None else ()
            values += [_by_gpu(gpus, name) for _, name in _GPU_COLUMNS]
        return values


_GPU_COLUMNS = (
    ("Avg GPU Utilization", "utilization"),
    ("Avg GPU Power Usage", "power_w"),
    ("Max GPU Memory Usage", "memory_used_bytes"),
    ("Total GPU Memory", "memory_total_bytes"),
)


def _by_gpu(gpus: Sequence[GpuFigures], name: str) -> str:
    """`uuid:value;uuid:value;`"""
    whole = name.startswith("memory")
    known = [(gpu.uuid, value) for gpu in gpus if (value := getattr(gpu, name)) is not None]
    return "".join(f"{uuid}:{int(value) if whole else rate(value)};" for uuid, value in known)


def _composing_header(rows: Sequence[LevelResult], *, caching: bool) -> list[str]:
    server = _server_names(caching=caching)
    return [_level_column(rows), "Inferences/Second", "Client Send", *server, "Client Recv"]


def _part(server: ServerBreakdown | None, model: str, version: str) -> ServerBreakdown | None:
    parts = composing_in_order(server) if server is not None else []
    return next((p for p in parts if (p.model, p.version) == (model, version)), None)


def _composing_row(
    result: LevelResult, server: ServerBreakdown, part: ServerBreakdown, *, caching: bool
) -> list[object]:
    """A model has no client of its own: what it is asked for is the ensemble's throughput times its share."""
    share = part.success_count / server.success_count if server.success_count else 0.0
    request_us = average_us(part.success_ns, part.success_count)
    between = max(0, request_us - part.accounted_ns // 1000)
    values = _server_values(part, caching=caching)
    throughput = rate(result.throughput_infer_per_s * share)
    return [rate(result.level.value), throughput, 0, between, *values, 0]
