"""One level from start to verdict, over a client without a network."""

import asyncio
import gc
from dataclasses import replace

import pytest

from tests.perf.conftest import FakeClient, FakeControl, make_session, measure
from tpx.errors import WireError
from tpx.perf.clients.model import ModelKey
from tpx.perf.levels import Level
from tpx.perf.measure.level import HOPELESS_FAILURES
from tpx.perf.observer import LevelProgress, Observer
from tpx.perf.results import LevelResult, Verdict
from tpx.perf.settings import ErrorBudget, LevelSettings

QUICK = LevelSettings(interval_ms=30, stability=100.0)  # windows of any machine agree


def at(concurrency: int) -> Level:
    return Level("concurrency", concurrency)


def measured(
    client: FakeClient, settings: LevelSettings = QUICK, concurrency: int = 2, batch_size: int = 1
) -> LevelResult:
    return measure(make_session(client, batch_size=batch_size), at(concurrency), settings)


@pytest.mark.slow
def test_a_steady_server_is_stable_after_three_windows() -> None:
    result = measured(FakeClient(service_s=0.002))
    assert (result.verdict, result.stable, len(result.windows)) == (Verdict.OK, True, 3)
    assert result.latency is not None
    assert 1_900_000 <= result.latency.percentiles_ns[50.0] <= result.windows[0].duration_ns
    assert result.requests == sum(w.requests for w in result.windows)
    assert result.level == at(2)


@pytest.mark.slow
def test_windows_are_back_to_back_and_last_one_point_two_intervals() -> None:
    windows = measured(FakeClient()).windows
    assert [w.duration_ns for w in windows] == [36_000_000] * 3
    assert [w.start_ns for w in windows[1:]] == [w.end_ns for w in windows[:-1]]


@pytest.mark.slow
def test_the_batch_multiplies_throughput_and_not_requests() -> None:
    result = measured(FakeClient(), batch_size=8)
    assert result.throughput_infer_per_s == pytest.approx(result.requests * 8e9 / result.duration_ns)


@pytest.mark.slow
def test_closed_loop_obeys_littles_law() -> None:
    result = measured(FakeClient(service_s=0.004), replace(QUICK, interval_ms=250), concurrency=8)
    assert result.latency is not None
    assert result.throughput_infer_per_s * result.latency.mean_ns / 1e9 == pytest.approx(8, rel=0.1)


@pytest.mark.slow
def test_a_restless_server_is_unstable_after_all_its_windows_and_still_has_figures() -> None:
    client = FakeClient(service_s=0.001)
    settings = replace(QUICK, stability=0.0, max_windows=4)
    result = measured(client, settings)
    assert (result.verdict, result.stable, len(result.windows)) == (Verdict.UNSTABLE, False, 4)
    assert result.reason.startswith(
        "Failed to obtain stable measurement within 4 measurement windows for concurrency 2. "
        "Please try to increase the --measurement-interval."
    )
    assert result.requests > 0
    assert not result.meets_limits


def test_a_level_over_the_latency_limit_says_so_also_when_it_is_unstable() -> None:
    # the limit ends it after three windows, on a busy machine after as many as its outliers need
    settings = replace(QUICK, stability=0.0, latency_limit_ms=2, max_windows=200)
    result = measured(FakeClient(service_s=0.005), settings)
    assert result.verdict is Verdict.OVER_LIMIT
    assert result.reason == "Measured latency went over the set limit of 2 msec."
    assert len(result.windows) >= 3


@pytest.mark.slow
def test_a_count_window_holds_the_count_or_more() -> None:
    settings = replace(QUICK, mode="count_windows", window_requests=20, count_window_floor_ms=0)
    result = measured(FakeClient(service_s=0.001), settings)
    assert [w.requests for w in result.windows] == [20, 20, 20]


@pytest.mark.slow
def test_a_request_count_is_one_exact_window_clamped_to_its_requests() -> None:
    client = FakeClient(service_s=0.01)
    result = measured(client, replace(QUICK, request_count=20), concurrency=1)
    assert (result.verdict, len(result.windows), result.requests) == (Verdict.OK, 1, 20)
    assert len(client.sent) == 20
    assert result.throughput_infer_per_s == pytest.approx(20e9 / result.duration_ns)
    assert result.throughput_infer_per_s < 100.5


@pytest.mark.slow
def test_warm_up_is_sent_before_and_not_counted() -> None:
    client = FakeClient()
    result = measured(client, replace(QUICK, request_count=10, warmup_requests=15))
    assert (len(client.sent), result.requests) == (25, 10)


def test_some_failures_are_counted_and_the_level_is_fine() -> None:
    client = FakeClient(answer=lambda n: 500 if n % 10 == 0 else 200)
    result = measured(client)
    assert result.verdict is Verdict.OK
    (error,) = result.errors
    assert (error.code, error.message) == ("HTTP 500", "the server said 500")
    assert error.count == result.failed == sum(w.failed for w in result.windows) > 0
    assert result.requests == sum(w.requests for w in result.windows)


@pytest.mark.slow
def test_failures_of_several_kinds_are_listed_by_frequency() -> None:
    client = FakeClient(answer=lambda n: {0: 500, 1: 503, 5: 503}.get(n % 10, 200))
    result = measured(client)
    assert [e.code for e in result.errors] == ["HTTP 503", "HTTP 500"]


@pytest.mark.slow
def test_a_level_where_everything_fails_ends_early_and_quotes_the_server() -> None:
    settings = replace(QUICK, interval_ms=60_000)
    result = measured(FakeClient(answer=lambda _: 400), settings)
    assert result.verdict is Verdict.ERRORS
    assert result.latency is None
    assert result.failed >= HOPELESS_FAILURES
    assert result.reason == (
        f"No valid requests recorded in a window: all {result.failed} failed. "
        "The first: HTTP 400: the server said 400"
    )


@pytest.mark.slow
def test_a_silent_server_is_no_valid_request() -> None:
    settings = replace(QUICK, max_windows=2, timeout_s=0.2)
    result = measured(FakeClient(answer=lambda _: None), settings)
    assert result.verdict is Verdict.ERRORS
    assert "No valid requests recorded within time interval" in result.reason


@pytest.mark.slow
def test_the_error_budget_ends_a_level_within_a_window() -> None:
    client = FakeClient(answer=lambda n: 500 if n > 20 and n % 2 else 200)
    settings = replace(QUICK, interval_ms=60_000, max_errors=ErrorBudget(count=3))
    result = measured(client, settings)
    assert (result.verdict, result.over_budget) == (Verdict.ERRORS, True)
    assert "more than --max-errors 3 allows. The first: HTTP 500" in result.reason
    assert result.requests > 0


@pytest.mark.slow
def test_a_share_of_failures_is_judged_at_the_end_of_a_window() -> None:
    client = FakeClient(answer=lambda n: 500 if n == 1 else 200)
    fine = measured(client, replace(QUICK, max_errors=ErrorBudget(percent=20)))
    assert fine.verdict is Verdict.OK
    bad = FakeClient(answer=lambda n: 500 if n % 2 else 200)
    assert measured(bad, replace(QUICK, max_errors=ErrorBudget(percent=20))).over_budget


@pytest.mark.slow
def test_an_interrupt_ends_the_window_and_keeps_what_was_measured() -> None:
    async def scene() -> LevelResult:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(0.05, stop.set)
        async with make_session(FakeClient(service_s=0.001), stop=stop) as session:
            return await session.measure(at(2), replace(QUICK, interval_ms=60_000))

    result = asyncio.run(scene())
    assert result.interrupted
    assert result.reason == (
        "Concurrency 2 was interrupted in window 1, before it was stable. "
        "(3 windows are needed, there were 1)"
    )
    assert result.requests > 0
    assert result.duration_ns < 10_000_000_000
    assert not result.meets_limits


def test_cancelling_stops_the_load_at_once() -> None:
    async def scene() -> int:
        client = FakeClient(service_s=0.001)
        async with make_session(client) as session:
            level = asyncio.ensure_future(session.measure(at(2), replace(QUICK, interval_ms=60_000)))
            await asyncio.sleep(0.05)
            level.cancel()
            with pytest.raises(asyncio.CancelledError):
                await level
            sent = len(client.sent)
            await asyncio.sleep(0.02)
            assert len(client.sent) == sent
            return sent

    assert asyncio.run(scene()) > 0


@pytest.mark.slow
def test_the_garbage_collector_rests_while_a_level_is_measured_and_works_again_after() -> None:
    seen = []

    def answer(_: int) -> int:
        seen.append(gc.isenabled())
        return 200

    measured(FakeClient(answer=answer))
    assert not any(seen)
    assert gc.isenabled()


@pytest.mark.slow
async def test_levels_reuse_the_slots_of_the_session() -> None:
    client = FakeClient()
    async with make_session(client) as session:
        for concurrency in (4, 1, 2):
            result = await session.measure(at(concurrency), QUICK)
            assert result.level.value == concurrency
            assert client.in_flight == 0
        assert client.renewed == 0


@pytest.mark.slow
async def test_the_load_falls_with_the_level() -> None:
    client = FakeClient()
    async with make_session(client) as session:
        await session.measure(at(8), QUICK)
        client.most_in_flight = 0
        await session.measure(at(2), QUICK)
        assert client.most_in_flight == 2


def test_server_counters_are_those_of_the_measured_windows() -> None:
    control = FakeControl()
    counters = {"success_count": 5, "success_ns": 500, "inference_count": 5}
    control.counters[ModelKey("m", "1")] = counters

    def answer(_: int) -> int:
        counters["success_count"] += 1
        counters["success_ns"] += 1000
        counters["inference_count"] += 4
        return 200

    session = make_session(FakeClient(answer=answer), control)
    result = measure(session, at(1), replace(QUICK, request_count=10))
    assert result.server is not None
    assert (result.server.success_count, result.server.success_ns) == (10, 10_000)
    assert result.server.inference_count == 40


@pytest.mark.slow
def test_an_interrupt_before_the_first_answer_is_told_as_that() -> None:
    stop = asyncio.Event()
    stop.set()
    session = make_session(FakeClient(answer=lambda _: None), stop=stop)
    result = measure(session, at(1), QUICK)
    assert (result.verdict, result.interrupted) == (Verdict.ERRORS, True)
    assert result.reason == "Concurrency 1 was interrupted before a request was answered."


class Listener(Observer):
    """Remembers what it was told."""

    progress_interval_s = 0.02

    def __init__(self) -> None:
        self.looks: list[LevelProgress] = []
        self.notices: list[str] = []

    def progress(self, progress: LevelProgress) -> None:
        self.looks.append(progress)

    def notice(self, text: str) -> None:
        self.notices.append(text)


@pytest.mark.slow
def test_an_observer_sees_throughput_and_p99_while_the_level_runs() -> None:
    listener = Listener()
    session = make_session(FakeClient(service_s=0.002), observer=listener)
    measure(session, at(4), replace(QUICK, interval_ms=100))
    look = listener.looks[1]
    assert look.level.value == 4
    assert look.window >= 1
    assert look.throughput_infer_per_s > 100
    assert look.percentiles_ns[99.0] > 1_900_000


@pytest.mark.slow
def test_an_observer_sees_the_warm_up_as_no_window() -> None:
    listener = Listener()
    settings = replace(QUICK, warmup_s=0.25)
    measure(make_session(FakeClient(), observer=listener), at(2), settings)
    windows = [look.window for look in listener.looks]
    assert windows == sorted(windows)
    assert set(windows) >= {0, 1}
    assert next(look for look in listener.looks if not look.window).throughput_infer_per_s > 0


@pytest.mark.slow
def test_missing_statistics_are_a_notice_and_not_the_end() -> None:
    control = FakeControl()
    control.fails = WireError("no such verb")
    listener = Listener()
    result = measure(make_session(FakeClient(), control, observer=listener), at(1), QUICK)
    assert result.verdict is Verdict.OK
    assert result.server is None
    assert listener.notices == ["no server-side statistics for a while: no such verb"]


@pytest.mark.slow
def test_a_server_that_dies_ends_the_level_after_one_dead_window() -> None:
    client = FakeClient(service_s=0.001, answer=lambda n: 200 if n < 100 else 503)
    result = measured(client, replace(QUICK, stability=0.0))
    assert result.verdict is Verdict.ERRORS
    assert result.windows[-1].requests == 0
    assert all(w.requests for w in result.windows[:-1])
    assert "The first: HTTP 503" in result.reason


@pytest.mark.slow
def test_a_fixed_schedule_sends_each_step_once_at_its_own_time() -> None:
    client = FakeClient()
    session = make_session(client, timestamps_ns=(0, 3_000_000, 3_000_000, 12_000_000))
    settings = replace(QUICK, request_count=4)
    result = measure(session, Level("fixed_schedule", 0), settings)
    assert (result.requests, len(client.sent), result.verdict) == (4, 4, Verdict.OK)
    assert result.duration_ns >= 9_000_000  # from when the first was really sent, which may be late
    assert result.open_loop is not None


@pytest.mark.slow
def test_the_steps_of_a_fixed_schedule_that_warm_up_are_not_sent_again() -> None:
    client = FakeClient()
    session = make_session(client, timestamps_ns=(0, 1_000_000, 600_000_000, 601_000_000))
    settings = replace(QUICK, request_count=2, warmup_requests=2)
    result = measure(session, Level("fixed_schedule", 0), settings)
    assert (result.requests, len(client.sent)) == (2, 4)
    assert result.duration_ns < 590_000_000
