"""Levels as text, line by line what perf_analyzer 2.51 printed when the figures were these."""

from dataclasses import replace

import pytest

from tests.perf.conftest import PLAIN_SPEC, make_level
from tpx.perf.levels import Level
from tpx.perf.metrics_page import GpuFigures, MetricsFigures, SeriesFigures
from tpx.perf.report.level_text import level_block
from tpx.perf.results import LevelResult, OpenLoop, ServerBreakdown, Streaming
from tpx.perf.statistics.summaries import LatencySummary

COMPOSING = """\
    Inference count: 3954
    Execution count: 3954
    Successful request count: 3954
    Avg request latency: 137 usec (overhead 11 usec + queue 34 usec + compute 92 usec)

  Composing models: 
  image_classification, version: 1
      Inference count: 3954
      Execution count: 3954
      Successful request count: 3954
      Avg request latency: 19 usec (overhead 0 usec + queue 7 usec + compute input 1 usec + compute infer 9 \
usec + compute output 2 usec)

  image_segmentation, version: 1
      Inference count: 3954
      Execution count: 3954
      Successful request count: 3954
      Avg request latency: 107 usec (overhead 0 usec + queue 27 usec + compute input 0 usec + compute infer \
78 usec + compute output 2 usec)

"""  # noqa: W291 (perf_analyzer's own blank)


def text(result: LevelResult, *, decoupled: bool = False) -> str:
    return level_block(result, PLAIN_SPEC, decoupled=decoupled)


def server_part(server: ServerBreakdown) -> str:
    return text(make_level(server=server)).partition("  Server: \n")[2]


def breakdown(name: str, times_us: tuple[int, ...], count: int = 3954, **more: object) -> ServerBreakdown:
    """A model whose request, queue, input, infer and output took so long."""
    total, queue, first, infer, last = (us * 1000 * count for us in times_us)
    fields = {
        "model": name, "version": "1", "inference_count": count, "execution_count": count,
        "success_count": count, "success_ns": total, "queue_count": count, "queue_ns": queue,
        "compute_count": count, "compute_input_ns": first, "compute_infer_ns": infer,
        "compute_output_ns": last,
    }  # fmt: skip
    return ServerBreakdown(**(fields | more))  # type: ignore[arg-type]


def latency(mean_us: int = 221, p99_us: int = 340) -> LatencySummary:
    base = make_level().latency
    assert base is not None
    return replace(base, mean_ns=mean_us * 1000, percentiles_ns=base.percentiles_ns | {99.0: p99_us * 1000})


ENSEMBLE = breakdown(
    "image_ensemble",
    (137, 35, 4, 78, 10),
    composing=(
        breakdown("image_segmentation", (107, 27, 0, 78, 2)),
        breakdown("image_classification", (19, 7, 1, 9, 2)),
    ),
)


def test_an_ensemble_adds_up_its_models_and_lists_them_by_name() -> None:
    assert server_part(ENSEMBLE) == COMPOSING


def test_an_ensemble_in_an_ensemble_goes_two_blanks_further_in() -> None:
    nested = replace(ENSEMBLE, model="outer", composing=(ENSEMBLE,))
    lines = server_part(nested).splitlines()
    assert "  image_ensemble, version: 1" in lines
    assert "    Composing models: " in lines
    assert "    image_classification, version: 1" in lines
    assert "        Inference count: 3954" in lines


def test_the_response_cache_tells_hits_from_misses() -> None:
    cached = ServerBreakdown(
        model="cached",
        version="1",
        response_cache=True,
        inference_count=1,
        execution_count=1,
        success_count=8909,
        success_ns=8909 * 4_400,
        queue_count=1,
        queue_ns=900,
        compute_count=1,
        compute_input_ns=18_000,
        compute_infer_ns=329_000,
        compute_output_ns=25_000,
        cache_hit_count=8908,
        cache_hit_ns=8908 * 4_200,
        cache_miss_count=1,
        cache_miss_ns=42_000,
    )
    assert server_part(cached) == (
        "    Inference count: 1\n"
        "    Execution count: 1\n"
        "    Cache hit count: 8908\n"
        "    Cache miss count: 1\n"
        "    Successful request count: 8909\n"
        "    Avg request latency: 4 usec (overhead 0 usec + queue 0 usec + cache hit/miss 4 usec)\n"
        "      Average Cache Hit Latency: 4 usec\n"
        "      Average Cache Miss Latency: 414 usec (cache lookup/insertion 42 usec + compute input 18 usec "
        "+ compute infer 329 usec + compute output 25 usec)\n"
        "\n"
    )


def test_an_ensemble_that_caches_its_answers_does_not_split_their_time() -> None:
    lines = server_part(replace(ENSEMBLE, response_cache=True)).splitlines()
    assert lines[5] == "    Avg request latency: 137 usec"
    assert lines[6:9] == [
        "      Average Cache Hit Latency: 0 usec",
        "      Average Cache Miss Latency: 92 usec ",
        "",
    ]


def test_a_decoupled_model_has_responses_and_no_times_of_the_library() -> None:
    stream = Streaming(responses=372, responses_per_s=412.167, figures=())
    lines = text(make_level(streaming=stream), decoupled=True).splitlines()
    assert lines[2:5] == [
        "    Request count: 8152",
        "    Throughput: 4478.72 infer/sec",
        "    Response Throughput: 412.167 infer/sec",
    ]
    assert lines[9:12] == ["    p99 latency: 340 usec", "    ", "  Server: "]


def test_sequences_are_counted_before_the_throughput() -> None:
    lines = text(make_level(sequences=383, duration_ns=1_800_000_000)).splitlines()
    assert lines[3] == "    Sequence count: 383 (212.778 seq/sec)"


def paced(delayed: int, service_us: int = 340, level: Level | None = None) -> LevelResult:
    pace = OpenLoop(
        service_latency=latency(221, service_us), slip=latency(), delayed=delayed, sent_per_s=13696.518
    )
    return make_level(level=level or Level("request_rate", 100.5), open_loop=pace)


def test_a_rate_that_was_not_kept_is_a_warning() -> None:
    lines = text(paced(8152)).splitlines()
    assert lines[0] == "Request Rate: 100.5 inference requests per seconds"
    assert lines[3:5] == [
        "    Avg send request rate: 13696.52 infer/sec",
        "    [WARNING] Perf Analyzer was not able to keep up with the desired request rate. 100.00% of the "
        "requests were delayed. ",
    ]


@pytest.mark.parametrize(("delayed", "told"), [(81, False), (82, True)])
def test_one_request_in_a_hundred_may_be_late(delayed: int, told: bool) -> None:
    assert ("Avg send request rate" in text(paced(delayed))) is told


def test_late_requests_are_a_share_of_all_that_were_sent_also_of_those_that_failed() -> None:
    pace = paced(8152).open_loop
    assert pace is not None
    sent = replace(pace, slip=replace(pace.slip, count=4 * 8152))
    assert " 25.00% of the requests were delayed. " in text(make_level(open_loop=sent))


@pytest.mark.parametrize("mode", ["custom_intervals", "fixed_schedule"])
def test_schedules_of_the_users_own_have_no_title(mode: str) -> None:
    lines = text(paced(0, level=Level(mode, 133.0))).splitlines()
    assert lines[0] == "  Client: "


def test_latency_from_the_due_time_and_from_sending_are_both_told_where_they_differ() -> None:
    assert "from when they were sent: mean 221 \u00b5s, p50 212 \u00b5s, p99 100 \u00b5s" in text(
        paced(0, 100)
    )
    assert "tpx adds" not in text(paced(0, 335))


GPU = GpuFigures(
    uuid="GPU-1", utilization=0.45, power_w=70.25, memory_used_bytes=10_000.0, memory_total_bytes=100_000.0
)


def test_gpus_are_listed_by_figure() -> None:
    metrics = MetricsFigures(scrapes=3, failed=0, gpus=(GPU, replace(GPU, uuid="GPU-2", power_w=None)))
    assert text(make_level(metrics=metrics)).partition("  Server Prometheus Metrics: \n")[2] == (
        "    Avg GPU Utilization:\n"
        "      GPU-1 : 45%\n"
        "      GPU-2 : 45%\n"
        "    Avg GPU Power Usage:\n"
        "      GPU-1 : 70.25 watts\n"
        "    Max GPU Memory Usage:\n"
        "      GPU-1 : 10000 bytes\n"
        "      GPU-2 : 10000 bytes\n"
        "    Total GPU Memory:\n"
        "      GPU-1 : 100000 bytes\n"
        "      GPU-2 : 100000 bytes\n"
        "\n"
    )


def test_more_than_sixteen_gpus_are_left_to_the_csv() -> None:
    metrics = MetricsFigures(scrapes=1, failed=0, gpus=(GPU,) * 17)
    assert "\nToo many GPUs on system to print out individual Prometheus metrics, use the CSV" in text(
        make_level(metrics=metrics)
    )


@pytest.mark.parametrize(("p50_us", "told"), [(351, True), (700, False)])
def test_a_mean_far_above_the_p50_is_explained(p50_us: int, told: bool) -> None:
    found = latency(mean_us=749)
    found = replace(found, percentiles_ns={**found.percentiles_ns, 50.0: p50_us * 1000})
    line = "Skewed latency: the mean is 2.1 times the p50, since a few requests take much longer"
    assert (line in text(make_level(latency=found))) is told


def test_what_perf_analyzer_lacks_stands_behind_its_own_lines() -> None:
    series = SeriesFigures(name="queue_us", mean=1.0, low=1.0, high=2.0, last=2.0, per_s=12.5)
    metrics = MetricsFigures(scrapes=1, failed=0, cpu_utilization=0.5, series=(series,))
    server = replace(make_level().server or ENSEMBLE, execution_count=1019)
    shown = text(make_level(metrics=metrics, server=server))
    assert shown.endswith(
        "  tpx adds:\n"
        "    Mean batch in the server: 8.00\n"
        "    Server's processor: 50%\n"
        "    queue_us: 12.5 per second\n\n"
    )
