"""The CSV, byte for byte as perf_analyzer 2.51 wrote it for the same figures."""

from dataclasses import replace

from tests.perf.conftest import make_level
from tpx.perf.report.csv import csv_text
from tpx.perf.results import LevelResult, Verdict

HEADER = (
    "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,"
    "Server Compute Infer,Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency"
)


def lines(*results: LevelResult, verbose: bool = False) -> list[str]:
    text = csv_text(results, verbose=verbose)
    assert text.endswith("\n")
    return text[:-1].split("\n")


def test_columns_and_figures_are_perf_analyzers() -> None:
    assert lines(make_level()) == [HEADER, "1,4478.72,26,80,25,5,63,17,0,211,275,295,340"]


def test_rows_are_sorted_by_throughput() -> None:
    rows = lines(make_level(1, 300.0), make_level(2, 100.0), make_level(4, 200.0))
    assert [row.split(",")[0] for row in rows[1:]] == ["2", "4", "1"]


def test_verbose_adds_mean_and_the_clients_times() -> None:
    header, row = lines(make_level(), verbose=True)
    assert header == HEADER + ",Avg latency,request/response,response wait"
    assert row.endswith(",340,221,26,192")


def test_a_percentile_gets_its_column_and_takes_the_means() -> None:
    latency = make_level().latency
    assert latency is not None
    latency = replace(latency, percentiles_ns=latency.percentiles_ns | {97.0: 300_000})
    header, row = lines(make_level(percentile=97.0, latency=latency), verbose=True)
    assert header.endswith("p95 latency,p97 latency,p99 latency,request/response,response wait")
    assert row.endswith(",295,300,340,26,192")


def test_without_statistics_the_servers_columns_are_left_out() -> None:
    header, row = lines(make_level(server=None))
    percentiles = "p50 latency,p90 latency,p95 latency,p99 latency"
    assert header == f"Concurrency,Inferences/Second,Client Send,Client Recv,{percentiles}"
    assert row == "1,4478.72,26,0,211,275,295,340"


def test_the_response_cache_adds_two_columns() -> None:
    server = make_level().server
    assert server is not None
    server = replace(server, response_cache=True, cache_hit_count=2, cache_hit_ns=6000)
    header, row = lines(make_level(server=server))
    assert "Server Compute Output,Server Cache Hit,Server Cache Miss,Client Recv" in header
    assert ",17,3,0,0,211," in row


def test_flagged_levels_have_no_row_and_the_header_stands_alone() -> None:
    assert lines(make_level(verdict=Verdict.UNSTABLE), make_level(interrupted=True)) == [HEADER]


def test_more_accounted_than_waited_is_a_network_time_of_zero() -> None:
    server = make_level().server
    assert server is not None
    _, row = lines(make_level(server=replace(server, queue_ns=10**12)))
    assert row.split(",")[3] == "0"
