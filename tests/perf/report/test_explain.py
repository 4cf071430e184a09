"""Explanations hold the report's own numbers."""

import re

import numpy as np

from tests.perf.conftest import make_level
from tests.perf.simulated import closed_loop, exponential, measured
from tpx.perf.levels import Level
from tpx.perf.report.level_text import explain
from tpx.perf.results import LevelResult
from tpx.perf.settings import LevelSettings

PA = LevelSettings(interval_ms=1000)
CI = LevelSettings(interval_ms=1000, rule="ci", max_windows=60)


def simulated(settings: LevelSettings) -> LevelResult:
    rng = np.random.default_rng(1)
    rows = closed_loop(rng, exponential(0.001), concurrency=4, servers=1, seconds=61)
    return measured(rows, Level("concurrency", 4), settings)


def test_the_figures_follow_from_the_numbers_shown() -> None:
    result = simulated(PA)
    text = explain(result, PA)
    terms, total = re.findall(r"request count = successes of the windows = ([0-9 +]+) = (\d+)", text)[0]
    assert sum(map(int, terms.split(" + "))) == int(total) == result.requests
    requests, batch, seconds, rate = re.findall(r"= (\d+) x (\d+) / ([\d.]+) s = ([\d.e+]+) infer/sec", text)[
        0
    ]
    assert abs(int(requests) * int(batch) / float(seconds) - float(rate)) < 0.01
    greatest, least, ratio = re.findall(
        r"throughput: .* = ([\d.]+) / ([\d.]+) = ([\d.]+), allowed 1.1: stable", text
    )[0]
    assert abs(float(greatest) / float(least) - float(ratio)) < 1e-4
    assert "95% confidence interval" in text
    assert "Little's law" in text


def test_every_percentile_says_its_rank() -> None:
    result = simulated(PA)
    assert result.latency is not None
    text = explain(result, PA)
    for p in (50, 90, 95, 99):
        assert f"p{p} = sorted latencies[int({p / 100:g} x ({result.latency.count} - 1) + 0.5)]" in text
        assert f"{result.latency.at(p) / 1e3:.1f} usec" in text


def test_the_rule_that_ended_the_level_is_the_one_explained() -> None:
    assert "within +-5% at two looks in a row: stable" in explain(simulated(CI), CI)
    counted = LevelSettings(request_count=10)
    assert "a counted run is one window" in explain(make_level(kept_windows=1), counted)


def test_the_server_and_the_network_are_explained_where_they_are_known() -> None:
    text = explain(make_level(kept_windows=3), PA)
    assert "server queue = 203800000 ns / 8152 = 25.0 usec" in text
    assert "mean server batch = inferences / executions = 8152 / 8152 = 1.00" in text
    assert re.search(r"network .* = 192.2 - 112.1 = 80.1 usec", text)


def test_an_engine_in_this_process_is_part_of_what_is_explained() -> None:
    text = explain(make_level(kept_windows=3), LevelSettings(with_engine=True))
    assert "the engine's part is in it" in text
    assert "the way to the engine and back = " in text
    assert "network" not in text
    assert "above 90% the level is client-bound" in explain(make_level(kept_windows=3), PA)


def test_a_level_without_a_request_is_explained_too() -> None:
    text = explain(make_level(latency=None, client=None, server=None, requests=0, kept_windows=3), PA)
    assert "request count" in text
    assert "p99" not in text
