"""Doubts are told where figures contradict each other, and nowhere else."""

from dataclasses import replace
from typing import Any

import pytest

from tests.perf.conftest import make_window
from tpx.perf.levels import Level
from tpx.perf.measure.estimates import sample_of
from tpx.perf.measure.ledger import Ending, MeasuredLevel
from tpx.perf.measure.rules import LevelStatus
from tpx.perf.measure.verdict import list_warnings
from tpx.perf.pace import PaceSpec
from tpx.perf.records import Records
from tpx.perf.results import ClientCheck, ServerBreakdown
from tpx.perf.settings import LevelSettings

CALM = ClientCheck(cpu_share=0.2, loop_lag_p99_ns=100_000, slip_p99_ns=0)
SETTINGS = LevelSettings()
POLLING = LevelSettings(pace=PaceSpec(poll="busy"))


def told(in_flight: float = 3.9, requests: int = 1000, **changes: Any) -> list[str]:
    """The doubts about a second of requests of two inferences each."""
    records = Records(1)
    records.append(0, 0, 0, 0, int(in_flight * 1e9), 0)
    fields: dict[str, Any] = {
        "level": Level("concurrency", 4),
        "settings": SETTINGS,
        "batch_size": 2,
        "records": records,
        "borders": (),
        "windows": (),
        "status": LevelStatus(kept=0, stable=True),
        "merged": make_window(requests, 100),
        "rows": records.since(0),
        "sample": sample_of(records.since(0), 0, 1),
        "ending": Ending(failures={}, failed=0, interrupted=False),
        "errors": (),
        "server": ServerBreakdown(model="m", version="1", inference_count=2000, success_count=1000),
        "check": CALM,
        "slo": (),
    }
    return list(list_warnings(MeasuredLevel(**(fields | changes))))


def test_a_sound_measurement_has_none() -> None:
    assert told() == []
    assert told(server=None) == []


@pytest.mark.parametrize("in_flight", [3.5, 4.5])
def test_littles_law_is_checked_to_a_tenth(in_flight: float) -> None:
    (doubt,) = told(in_flight=in_flight)
    assert doubt.startswith(f"Measurement inconsistent: by throughput and latency {in_flight:.2f} requests")
    assert "12% off the concurrency of 4" in doubt


def test_little_is_not_asked_of_rates_or_of_runs_that_are_mostly_beginning_and_end() -> None:
    assert told(in_flight=1.0, level=Level("request_rate", 400.0)) == []
    assert told(in_flight=1.0, settings=replace(SETTINGS, request_count=1000), requests=39, server=None) == []
    assert len(told(in_flight=1.0, settings=replace(SETTINGS, request_count=1000))) == 1


@pytest.mark.parametrize(
    ("counted", "words"), [(2400, "20% more than the 2000 of this client"), (1500, "25% fewer than the 2000")]
)
def test_a_server_that_counted_otherwise_is_told(counted: int, words: str) -> None:
    (doubt,) = told(server=ServerBreakdown(model="m", version="1", inference_count=counted))
    assert words in doubt
    assert "The server counted" in doubt


def test_what_the_cache_answered_is_no_inference_and_no_doubt() -> None:
    cached = ServerBreakdown(
        model="m", version="1", inference_count=10, success_count=1000, response_cache=True
    )
    assert told(server=cached) == []


def test_a_few_requests_at_the_borders_are_no_doubt() -> None:
    few = ServerBreakdown(model="m", version="1", inference_count=2 * 24)
    assert told(requests=20, server=few) == []


def test_requests_of_a_rate_that_left_late_are_told_with_how_busy_the_client_was() -> None:
    late = ClientCheck(cpu_share=0.3, loop_lag_p99_ns=0, slip_p99_ns=25_000_000)
    (doubt,) = told(level=Level("request_rate", 400.0), check=late)
    assert "one in a hundred by 25.0 ms or more, while the client was busy 30% of the time" in doubt


def test_a_polling_client_without_a_processor_of_its_own_is_doubtful() -> None:
    shared = ClientCheck(cpu_share=0.8, loop_lag_p99_ns=0, slip_p99_ns=0)
    (doubt,) = told(settings=POLLING, check=shared)
    assert doubt.startswith("The polling client had a processor for 80% of the time only")
    assert told(check=shared) == []
    assert told(settings=POLLING, check=ClientCheck(cpu_share=0.99, loop_lag_p99_ns=0, slip_p99_ns=0)) == []
