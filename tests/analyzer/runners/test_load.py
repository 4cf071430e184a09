"""The load generator's answer in the analyzer's words."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.analyzer.measuring import make_latency, make_window
from tests.perf.clients.openai_server import Script, openai_server
from tpx.analyzer.metrics import METRICS
from tpx.analyzer.results.measurement import LoadPoint, Variant
from tpx.analyzer.runners.load import LoadGenerator, level_of, shorten_rules, to_measurement
from tpx.analyzer.variants import configure
from tpx.argv import from_argv
from tpx.perf.inputs.texts import PROBES
from tpx.perf.levels import Level
from tpx.perf.options import SessionSpec
from tpx.perf.results import ClientTimes, Estimates, LevelResult, ServerBreakdown, Verdict
from tpx.perf.statistics.intervals import Interval
from tpx.perf.statistics.summaries import Batches, LatencySummary

LOAD = LoadPoint(value=8, batch_size=2)
LEVEL = LevelResult(
    level=Level("concurrency", 8),
    batch_size=2,
    verdict=Verdict.OK,
    stable=True,
    percentile=None,
    windows=(),
    requests=400,
    duration_ns=2_000_000_000,
    throughput_infer_per_s=400.0,
    latency=LatencySummary(
        count=400,
        mean_ns=5,
        std_ns=1.0,
        min_ns=1,
        max_ns=9,
        percentiles_ns={50.0: 50, 90.0: 90, 95.0: 95, 99.0: 99, 99.9: 100},
    ),
    client=ClientTimes(send_ns=10, wait_ns=30, receive_ns=20),
    client_busy=0.1,
    server=ServerBreakdown(
        model="m",
        version="1",
        success_count=4,
        queue_count=4,
        queue_ns=400,
        compute_count=2,
        compute_input_ns=20,
        compute_infer_ns=200,
        compute_output_ns=2,
    ),
    failed=0,
    errors=(),
)


def test_a_measurement_keeps_its_level_and_reads_its_figures_from_it() -> None:
    measurement = to_measurement(LEVEL, "m_config_0", LOAD)
    assert measurement.result == LEVEL
    assert (measurement.variant, measurement.load) == ("m_config_0", LOAD)
    assert (measurement.throughput, measurement.p99_ns, measurement.mean_ns) == (400.0, 99, 5)
    assert (measurement.stable, measurement.note) == (True, "")
    shown = {
        "perf_server_queue": 100,
        "perf_server_compute_input": 10,
        "perf_server_compute_infer": 100,
        "perf_server_compute_output": 1,
        "perf_client_send_recv": 30,
        "perf_client_response_wait": 30,
        "perf_latency_p90": 90,
    }
    assert {tag: METRICS[tag].value(measurement) for tag in shown} == {
        tag: ns / 1e6 for tag, ns in shown.items()
    }


def test_what_nobody_counted_is_absent_not_zero() -> None:
    measurement = to_measurement(replace(LEVEL, server=None, client=None), "m", LOAD)
    assert METRICS["perf_server_queue"].value(measurement) is None
    assert METRICS["perf_client_response_wait"].value(measurement) is None


def test_an_unstable_level_carries_its_reason_and_its_failures() -> None:
    level = replace(LEVEL, stable=False, verdict=Verdict.UNSTABLE, reason="throughput moved by 30%", failed=3)
    measurement = to_measurement(level, "m", LOAD)
    assert not measurement.stable
    assert measurement.note == "throughput moved by 30%; 3 requests failed"


def test_the_note_of_an_unstable_level_says_how_well_its_throughput_is_known() -> None:
    known = Interval(value=100.0, low=70.0, high=130.0, confidence=0.95)
    none = np.zeros(0, np.int64)
    batches = Batches(
        start_ns=0,
        end_ns=1,
        requests=none,
        failed=none,
        latency_sum_ns=none.astype(float),
        bins=none,
        histogram=none,
    )
    estimates = Estimates(throughput=known, latency=(), batches=batches)
    level = replace(LEVEL, stable=False, verdict=Verdict.UNSTABLE, reason="moved", estimates=estimates)
    note = to_measurement(level, "m", LOAD).note
    assert note.endswith(
        "its throughput was known to \u00b130% only; try a longer --measurement-interval or more --max-trials"
    )


@pytest.mark.parametrize(("words", "most"), [((), 3), (("--max-trials", "5"), 5), (("--max-trials", "1"), 1)])
def test_a_trial_has_as_many_windows_as_were_asked_for(words: tuple[str, ...], most: int) -> None:
    spec = from_argv(SessionSpec, ["-m", "m", *words])
    assert shorten_rules(spec.level_settings, spec.windows.max_trials or 3, fixed=0).max_windows == most
    fixed = shorten_rules(spec.level_settings, 3, fixed=4)
    assert (fixed.max_windows, fixed.fixed_windows) == (4, 4)


def test_the_windows_of_a_final_round_are_those_of_its_figures() -> None:
    windows = tuple(make_window(rate, make_latency(p99_ns=9)) for rate in (1.0, 2.0, 3.0))
    level = replace(LEVEL, windows=windows, kept_windows=2)
    assert to_measurement(level, "m", LOAD).windows == ()
    assert to_measurement(level, "m", LOAD, windowed=True).windows == windows[1:]


def test_a_file_of_intervals_is_sent_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "gaps").write_text("1000\n2000\n")
    words = ["-m", "m", f"--request-intervals={tmp_path / 'gaps'}"]
    level = level_of(from_argv(SessionSpec, words), LoadPoint(kind="request_rate", value=667))
    assert level.mode == "custom_intervals"
    assert level.value == pytest.approx(2000 / 3)
    assert level_of(from_argv(SessionSpec, words[:2]), LOAD) == Level("concurrency", 8)


def test_only_the_first_measurement_asks_a_service_how_it_counts_tokens() -> None:
    script = Script(first_s=0, per_word=2)
    words = "-m llm --service-kind openai --endpoint v1/completions --input-tokens 20 --request-count 2"
    spec = from_argv(SessionSpec, words.split())
    load = LoadGenerator(sessions={"llm": spec}, most_windows=1)
    configuration = configure(Variant(models=("llm",), name="llm", delta={}), {})
    with openai_server(script) as url:
        for _ in range(2):
            asyncio.run(load.measure(configuration, LoadPoint(value=1), url))
    assert len(script.bodies) == 2 * PROBES + 2 * 2
