"""The CSV, byte for byte as perf_analyzer 2.51 wrote it for the same figures."""

from dataclasses import replace
from pathlib import Path

from tests.perf.conftest import make_level
from tpx.perf.levels import Level
from tpx.perf.metrics_page import GpuFigures, MetricsFigures
from tpx.perf.report.files import composing_files, csv_text
from tpx.perf.results import LevelResult, ServerBreakdown, Streaming, Verdict

HEADER = (
    "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,"
    "Server Compute Infer,Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency"
)


def lines(*results: LevelResult, **options: bool) -> list[str]:
    text = csv_text(results, **options)
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


def test_a_rate_takes_the_place_of_the_concurrency() -> None:
    header, row = lines(make_level(level=Level("request_rate", 0.5)))
    assert header.startswith("Request Rate,Inferences/Second,Client Send,")
    assert row.startswith("0.5,4478.72,26,")


def test_a_decoupled_model_has_its_responses_per_second() -> None:
    stream = Streaming(responses=372, responses_per_s=412.167, figures=())
    header, row = lines(make_level(streaming=stream), decoupled=True)
    assert header.startswith("Concurrency,Inferences/Second,Response Throughput,Client Send,")
    assert row.startswith("1,4478.72,412.167,26,80,")


def test_what_the_cache_took_is_not_on_the_network() -> None:
    server = make_level().server
    assert server is not None
    cached = replace(
        server,
        response_cache=True,
        cache_hit_count=1,
        cache_hit_ns=60_000,
        cache_miss_count=1,
        cache_miss_ns=5000,
    )
    _, row = lines(make_level(server=cached))
    assert row.split(",")[3] == str(80 - 60 - 5)


def test_gpus_have_a_column_for_each_figure_in_the_verbose_file_only() -> None:
    gpus = (
        GpuFigures(
            uuid="GPU-1", utilization=0.45, power_w=70.0, memory_used_bytes=1e7, memory_total_bytes=1e9
        ),
        GpuFigures(uuid="GPU-2", utilization=0.5),
    )
    level = make_level(metrics=MetricsFigures(scrapes=2, failed=0, gpus=gpus))
    header, row = lines(level, verbose=True, metrics=True)
    assert header.endswith(
        ",response wait,Avg GPU Utilization,Avg GPU Power Usage,Max GPU Memory Usage,Total GPU Memory"
    )
    assert row.endswith(",192,GPU-1:0.45;GPU-2:0.5;,GPU-1:70;,GPU-1:10000000;,GPU-1:1000000000;")
    assert lines(level, metrics=True)[0] == HEADER


def test_without_gpus_their_columns_are_empty() -> None:
    level = make_level(metrics=MetricsFigures(scrapes=2, failed=0))
    assert lines(level, verbose=True, metrics=True)[1].endswith(",192,,,,")


def part(name: str, count: int, request_us: int) -> ServerBreakdown:
    return ServerBreakdown(
        model=name, version="1", success_count=count, success_ns=count * request_us * 1000,
        queue_count=count, queue_ns=count * 4000, compute_count=count, compute_input_ns=count * 2000,
        compute_infer_ns=count * 35_000, compute_output_ns=count * 5000,
    )  # fmt: skip


def test_each_model_of_an_ensemble_has_a_file_beside_it(tmp_path: Path) -> None:
    top = ServerBreakdown(
        model="top",
        version="1",
        success_count=3954,
        composing=(part("second", 3954, 47), part("first", 3955, 50)),
    )
    files = list(composing_files([make_level(1, 4327.82, server=top)], tmp_path / "a.csv"))
    assert [path for path, _ in files] == [tmp_path / "first_v1.a.csv", tmp_path / "second_v1.a.csv"]
    assert files[0][1] == (
        "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,"
        "Server Compute Input,Server Compute Infer,Server Compute Output,Client Recv\n"
        "1,4328.91,0,4,4,2,35,5,0\n"
    )


def test_a_model_that_is_no_ensemble_has_one_file(tmp_path: Path) -> None:
    assert list(composing_files([make_level()], tmp_path / "a.csv")) == []
