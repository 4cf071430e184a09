"""perf_analyzer's CSV: one row per level that met the limits, and one file per model of an ensemble."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from tpx.perf.levels import CONCURRENCY
from tpx.perf.metrics.figures import GpuFigures, MetricsFigures
from tpx.perf.report.level_text import composing_in_order, has_response_cache
from tpx.perf.report.model import average_us, percentile_name, rate, usec
from tpx.perf.results import ClientTimes, LevelResult, ServerBreakdown
from tpx.perf.statistics.latency import LatencySummary, reported_percentiles


def csv_text(
    results: Sequence[LevelResult], *, verbose: bool = False, decoupled: bool = False, metrics: bool = False
) -> str:
    """Return the file's content; only the header if no level met the limits.

    `metrics` adds the columns of the server's metrics to a verbose file.

    Columns and their arithmetic are perf_analyzer's (report_writer.cc): latencies in whole
    microseconds, no quoting.
    """
    rows = _rows(results)
    columns = _Columns(rows or results, verbose=verbose, decoupled=decoupled, metrics=metrics)
    lines = [",".join(columns.header())]
    lines += [
        ",".join(map(str, columns.row(r, r.latency, r.client)))
        for r in rows
        if r.latency is not None and r.client is not None
    ]
    return "\n".join(lines) + "\n"


def composing_files(results: Sequence[LevelResult], path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files of an ensemble's models next to `path`; `NAME_vVERSION.` precedes the file name."""
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


_NO_SERVER = ServerBreakdown(model="", version="")


def _server_names(*, caching: bool) -> list[str]:
    stages = [name.replace("_", " ").title() for name in _stages(_NO_SERVER, caching=caching)]
    return ["Network+Server Send/Recv", *(f"Server {stage}" for stage in stages)]


def _stages(server: ServerBreakdown, *, caching: bool) -> dict[str, int]:
    """Return the average of each stage in us; cache stages only with `caching`."""
    stages = server.stages.items()
    return {name: average_us(*stage) for name, stage in stages if caching or not name.startswith("cache")}


class _Columns:
    def __init__(
        self, results: Sequence[LevelResult], *, verbose: bool, decoupled: bool, metrics: bool
    ) -> None:
        servers = [r.server for r in results if r.server is not None]
        self._level = _level_column(results)
        self._percentile = results[0].percentile if results else None
        self._with_server = bool(servers)
        self._caching = any(has_response_cache(s) for s in servers)
        self._verbose, self._decoupled, self._metrics = verbose, decoupled, metrics

    def header(self) -> list[str]:
        names = [self._level, "Inferences/Second"]
        if self._decoupled:
            names.append("Response Throughput")
        names.append("Client Send")
        if self._with_server:
            names += _server_names(caching=self._caching)
        names.append("Client Recv")
        names += [f"{percentile_name(p)} latency" for p in reported_percentiles(self._percentile)]
        if self._verbose:
            if self._percentile is None:
                names.append("Avg latency")
            names += ["request/response", "response wait"]
            if self._metrics:
                names += [title for title, _ in _GPU_COLUMNS]
        return names

    def row(self, result: LevelResult, latency: LatencySummary, client: ClientTimes) -> list[object]:
        values: list[object] = [rate(result.level.value), rate(result.throughput_infer_per_s)]
        if self._decoupled:
            values.append(rate(result.streaming.responses_per_s if result.streaming else 0.0))
        values.append(usec(client.send_ns))
        if self._with_server:
            stages = _stages(result.server or _NO_SERVER, caching=self._caching)
            values += [usec(result.network_ns), *stages.values()]
        values.append(usec(client.receive_ns))
        values += [usec(latency.at(p)) for p in reported_percentiles(self._percentile)]
        if self._verbose:
            values += self._further(result.metrics, latency, client)
        return values

    def _further(
        self, metrics: MetricsFigures | None, latency: LatencySummary, client: ClientTimes
    ) -> list[object]:
        values: list[object] = [usec(latency.mean_ns)] if self._percentile is None else []
        values += [usec(client.send_ns + client.receive_ns), usec(client.wait_ns)]
        if self._metrics:
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
    """Return `uuid:value;uuid:value;`."""
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
    """Return the row of a composing model. It has no client, so throughput is the ensemble's times its
    share.
    """
    share = part.success_count / server.success_count if server.success_count else 0.0
    request_us = average_us(part.success_ns, part.success_count)
    between = max(0, request_us - part.accounted_ns // 1000)
    values = _stages(part, caching=caching).values()
    throughput = rate(result.throughput_infer_per_s * share)
    return [rate(result.level.value), throughput, 0, between, *values, 0]
