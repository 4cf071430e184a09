"""Reading a metrics page, and making figures of many looks at it."""

import pytest

from tpx.perf.measure.scraper import PageReader, Scrape, pieces, summarize

PAGE = b"""\
# HELP nv_inference_count Inferences
# TYPE nv_inference_count counter
nv_inference_count{model="a",version="1"} 30
nv_inference_count{model="b",version="1"} 10
# TYPE nv_inference_exec_count counter
nv_inference_exec_count{model="a",version="1"} 10
# TYPE nv_gpu_utilization gauge
nv_gpu_utilization{gpu_uuid="GPU-1"} 0.25
nv_gpu_power_usage{gpu_uuid="GPU-1"} 61.5
nv_gpu_memory_used_bytes{gpu_uuid="GPU-1"} 1000
nv_gpu_memory_total_bytes{gpu_uuid="GPU-1"} 2000
nv_cpu_utilization 0.5
nv_cpu_memory_used_bytes 4000
nv_inference_pending_request_count{model="a"} 7
nv_inference_queue_duration_us{model="a{b}"} NaN
nv_inference_counted 5
"""


def read(*wanted: str) -> Scrape:
    return PageReader(wanted).read(PAGE, time_ns=1, took_ns=2)


def test_counters_of_all_models_are_added_up() -> None:
    values = read().values
    assert (values["nv_inference_count"], values["nv_inference_exec_count"]) == (40, 10)
    assert "nv_inference_counted" not in values


def test_gauges_of_a_gpu_go_by_its_uuid() -> None:
    assert read().gpus == {
        "GPU-1": {
            "utilization": 0.25,
            "power_w": 61.5,
            "memory_used_bytes": 1000,
            "memory_total_bytes": 2000,
        }
    }


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("pending", ['nv_inference_pending_request_count{model="a"}']),
        ('model="b"', ['nv_inference_count{model="b",version="1"}']),
        ("^nv_cpu_utilization$", ["nv_cpu_utilization"]),
        ("no such thing", []),
        ("queue_duration", ['nv_inference_queue_duration_us{model="a{b}"}']),
    ],
)
def test_a_user_may_ask_for_any_series(wanted: str, found: list[str]) -> None:
    assert list(read(wanted).series) == found


def test_counters_are_told_by_their_type() -> None:
    reader = PageReader()
    reader.read(PAGE, 1, 2)
    assert reader.counters == {"nv_inference_count", "nv_inference_exec_count"}


def test_a_long_page_is_read_in_pieces_of_whole_lines() -> None:
    page = (
        b"".join(b'nv_inference_count{model="m%d"} 2\n' % number for number in range(3000))
        + b"nv_cpu_utilization 0.5"
    )
    cut = [page[start:end] for start, end in pieces(page)]
    assert b"".join(cut) == page
    assert len(cut) > 3
    assert all(piece.endswith(b"\n") for piece in cut[:-1])
    scrape = PageReader(["nv_inference_count"]).read(page, 1, 2)
    assert scrape.values == {"nv_inference_count": 6000.0, "nv_cpu_utilization": 0.5}
    assert len(scrape.series) == 3000
    assert list(pieces(b"")) == []


def look(second: float, **values: float) -> Scrape:
    gpus = {"GPU-1": {"utilization": values.pop("gpu")}} if "gpu" in values else {}
    series = {"c_total": values["c_total"]} if "c_total" in values else {}
    return Scrape(
        time_ns=int(second * 1e9), took_ns=2000, cost_ns=500, values=values, gpus=gpus, series=series
    )


SPAN = (1_000_000_000, 3_000_000_000)
COUNTERS = frozenset({"c_total"})


def test_gauges_are_of_the_looks_within_the_time() -> None:
    looks = [look(0.5, gpu=1.0), look(1.5, gpu=0.2), look(2.5, gpu=0.4), look(3.5, gpu=1.0)]
    figures = summarize(looks, SPAN, 1, COUNTERS)
    assert (figures.scrapes, figures.failed) == (2, 1)
    assert figures.gpus[0].utilization == pytest.approx(0.3)
    assert figures.gpus[0].power_w is None
    assert (figures.scrape_ns, figures.cost_ns) == (2000, 500)


def test_a_gpu_that_a_look_misses_is_averaged_over_the_others() -> None:
    figures = summarize([look(1.5), look(2.5, gpu=0.4)], SPAN, 0, COUNTERS)
    assert figures.gpus[0].utilization == pytest.approx(0.4)


def test_counters_grow_from_the_look_before_to_the_look_behind() -> None:
    looks = [look(0, c_total=9), look(1, c_total=10), look(2, c_total=15), look(3, c_total=30)]
    (series,) = summarize(looks, SPAN, 0, COUNTERS).series
    assert series.per_s == pytest.approx(10.0)
    (gauge,) = summarize(looks, SPAN, 0, frozenset()).series
    assert gauge.per_s is None
    assert (gauge.low, gauge.high, gauge.last) == (10, 30, 30)


def test_what_is_no_number_is_in_no_figure() -> None:
    page = b'nv_gpu_power_usage{gpu_uuid="G"} NaN\nnv_cpu_utilization +Inf\nseen NaN\nnever NaN\n'
    reader = PageReader(["seen", "never"])
    scrapes = [reader.read(page.replace(b"seen NaN", b"seen %d" % n), n, 1) for n in (1, 2)]
    found = summarize([reader.read(page, 0, 1), *scrapes], (0, 2), 0, frozenset({"seen"}))
    (series,) = found.series
    assert (series.name, series.mean, series.low, series.high) == ("seen", 1.5, 1, 2)
    assert series.per_s == 1e9
    assert (found.gpus, found.cpu_utilization) == ((), None)


def test_a_mean_batch_is_that_of_the_executions_within_the_time() -> None:
    counts = [
        look(t, nv_inference_count=i, nv_inference_exec_count=e) for t, i, e in ((1, 100, 90), (3, 180, 110))
    ]
    assert summarize(counts, SPAN, 0, COUNTERS).mean_batch == pytest.approx(4.0)
    assert summarize(counts[:1], SPAN, 0, COUNTERS).mean_batch is None


def test_a_level_shorter_than_the_interval_has_the_last_look() -> None:
    assert summarize([look(0.5, nv_cpu_utilization=0.7)], SPAN, 0, COUNTERS).cpu_utilization == 0.7
