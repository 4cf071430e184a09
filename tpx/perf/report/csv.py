"""perf_analyzer's CSV: one row per level that met the limits, by throughput."""

from collections.abc import Sequence

from tpx.perf.latency import LatencySummary, reported_percentiles
from tpx.perf.report.figures import average_us, percentile_name, rate, usec
from tpx.perf.results import ClientTimes, LevelResult, ServerBreakdown


def csv_text(results: Sequence[LevelResult], *, verbose: bool) -> str:
    """The file's content; the header alone where no level met the limits.

    Columns and their arithmetic are perf_analyzer's (report_writer.cc): latencies in whole microseconds, no
    quoting.
    """
    good = sorted(
        (r for r in results if r.meets_limits and r.latency is not None),
        key=lambda r: r.throughput_infer_per_s,
    )
    sample = good or list(results)
    servers = [r.server for r in sample if r.server is not None]
    percentile = sample[0].percentile if sample else None
    columns = _Columns(
        percentile,
        verbose=verbose,
        with_server=bool(servers),
        response_cache=any(s.response_cache for s in servers),
    )
    lines = [",".join(columns.header())]
    lines += [
        ",".join(map(str, columns.row(r, r.latency, r.client)))
        for r in good
        if r.latency is not None and r.client is not None
    ]
    return "\n".join(lines) + "\n"


class _Columns:
    def __init__(
        self, percentile: float | None, *, with_server: bool, verbose: bool, response_cache: bool
    ) -> None:
        self._percentile = percentile
        self._with_server = with_server
        self._verbose = verbose
        self._response_cache = response_cache

    def header(self) -> list[str]:
        names = ["Concurrency", "Inferences/Second", "Client Send"]
        if self._with_server:
            names += ["Network+Server Send/Recv", "Server Queue"]
            names += ["Server Compute Input", "Server Compute Infer", "Server Compute Output"]
            if self._response_cache:
                names += ["Server Cache Hit", "Server Cache Miss"]
        names.append("Client Recv")
        names += [f"{percentile_name(p)} latency" for p in reported_percentiles(self._percentile)]
        if self._verbose:
            if self._percentile is None:
                names.append("Avg latency")
            names += ["request/response", "response wait"]
        return names

    def row(self, result: LevelResult, latency: LatencySummary, client: ClientTimes) -> list[object]:
        values: list[object] = [result.level.value, rate(result.throughput_infer_per_s), usec(client.send_ns)]
        if self._with_server:
            values += [usec(result.network_ns), *self._server(result.server)]
        values.append(usec(client.receive_ns))
        values += [usec(latency.at(p)) for p in reported_percentiles(self._percentile)]
        if self._verbose:
            if self._percentile is None:
                values.append(usec(latency.mean_ns))
            values += [usec(client.send_ns + client.receive_ns), usec(client.wait_ns)]
        return values

    def _server(self, server: ServerBreakdown | None) -> list[int]:
        if server is None:
            return [0] * (6 if self._response_cache else 4)
        values = [average_us(server.queue_ns, server.queue_count)]
        values += [
            average_us(ns, server.compute_count)
            for ns in (server.compute_input_ns, server.compute_infer_ns, server.compute_output_ns)
        ]
        if self._response_cache:
            values += [
                average_us(server.cache_hit_ns, server.cache_hit_count),
                average_us(server.cache_miss_ns, server.cache_miss_count),
            ]
        return values
