"""Whole runs over real connections: HTTP against a server of the standard library, gRPC against grpcio."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime, timedelta, tzinfo

import pytest

from tests.perf.servers import Behaviour, grpc_server, http_server
from tpx.argv import from_argv
from tpx.errors import MeasurementError, UsageError, WireError
from tpx.perf.levels import Level
from tpx.perf.loops import event_loop
from tpx.perf.options import SessionSpec
from tpx.perf.report.model import Report
from tpx.perf.results import LevelResult, Verdict
from tpx.perf.run import run
from tpx.perf.session import Session
from tpx.protocol import messages

Serve = Callable[[Behaviour], AbstractContextManager[str]]

SERVERS: dict[str, Serve] = {"http": http_server, "grpc": grpc_server}
BOTH = pytest.mark.parametrize("protocol", ["http", "grpc"])
QUICK = ("-p", "40", "-s", "500", "-m", "net")


def ran(protocol: str, behaviour: Behaviour, *words: str) -> Report:
    with SERVERS[protocol](behaviour) as url:
        config = from_argv(SessionSpec, ["-i", protocol, "-u", url, *QUICK, *words])
        with asyncio.Runner(loop_factory=event_loop) as runner:
            return runner.run(run(config))


@BOTH
def test_a_sweep_gives_a_result_for_each_level(protocol: str) -> None:
    report = ran(protocol, Behaviour(), "--concurrency-range", "1:3")
    assert [r.level.value for r in report.levels] == [1, 2, 3]
    for result in report.levels:
        assert (result.verdict, result.failed) == (Verdict.OK, 0)
        assert result.requests > 0
        assert result.client is not None
        assert result.client.wait_ns > 0
    assert report.best is not None
    assert (report.server.name, report.model.platform) == ("test", "test")


def test_a_run_ends_after_it_began_whatever_the_clock_is_set_to(monkeypatch: pytest.MonkeyPatch) -> None:
    class SetBack(datetime):
        hours = 0

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "SetBack":
            cls.hours += 1
            return cls(2026, 1, 2, tzinfo=tz) - timedelta(hours=cls.hours)

    monkeypatch.setattr("tpx.perf.run.datetime", SetBack)
    report = ran("http", Behaviour(), "--request-count", "20")
    taken = datetime.fromisoformat(report.finished) - datetime.fromisoformat(report.started)
    assert timedelta(0) < taken < timedelta(minutes=1)


def test_the_load_of_a_warm_up_by_time_is_not_measured() -> None:
    behaviour = Behaviour(delay_s=lambda _: 0.01)
    (level,) = ran("http", behaviour, "--warmup-seconds", "0.3", "--request-count", "5").levels
    assert level.requests == 5
    assert 5 < behaviour.infers - 5 <= 31


@BOTH
def test_the_servers_figures_come_from_its_statistics(protocol: str) -> None:
    (level,) = ran(protocol, Behaviour(), "--request-count", "20").levels
    server = level.server
    assert server is not None
    assert (server.model, server.version, server.success_count) == ("net", "1", 20)
    assert (server.queue_ns, server.compute_infer_ns) == (20_000, 100_000)


@BOTH
def test_a_server_without_statistics_or_configuration_is_measured_too(protocol: str) -> None:
    behaviour = Behaviour(extensions=(), has_config=False)
    (level,) = ran(protocol, behaviour, "--request-count", "5", "--shape", "x:1,4").levels
    assert (level.server, level.requests) == (None, 5)


@BOTH
def test_errors_are_counted_by_code_with_the_servers_words(protocol: str) -> None:
    status = 503 if protocol == "http" else 14
    behaviour = Behaviour(status=lambda n: status if n % 4 == 0 else 0)
    (level,) = ran(protocol, behaviour, "--request-count", "40").levels
    (error,) = level.errors
    assert (error.count, level.requests, level.failed) == (10, 30, 10)
    assert error.code == ("HTTP 503" if protocol == "http" else "gRPC UNAVAILABLE")
    assert error.message == f"failed on purpose with {status}"


@BOTH
def test_a_model_that_the_server_does_not_know_is_named_in_its_words(protocol: str) -> None:
    with pytest.raises(MeasurementError) as caught:
        ran(protocol, Behaviour(), "-m", "nope")
    assert caught.value.message == (
        "failed to get model metadata: Request for unknown model: 'nope' is not found"
    )


@BOTH
def test_nobody_there_names_the_address(protocol: str) -> None:
    with SERVERS[protocol](Behaviour()) as url:
        pass
    config = from_argv(SessionSpec, ["-i", protocol, "-u", url, *QUICK])
    with pytest.raises(WireError, match=f"cannot connect to {url}"):
        asyncio.run(run(config))


def test_an_http_request_is_binary_and_carries_the_users_headers() -> None:
    behaviour = Behaviour()
    ran("http", behaviour, "--request-count", "1", "-b", "2", "-H", "X-Team: red", "-H", "Host: net.example")
    headers, body = behaviour.seen[0]
    assert headers["x-team"] == "red"
    assert headers["host"] == "net.example"
    head = body[: int(headers["inference-header-content-length"])]
    assert b'"shape":[2,4]' in head.replace(b" ", b"")
    assert len(body) - len(head) == 2 * 4 * 4


def test_a_grpc_request_carries_raw_inputs_and_the_users_metadata() -> None:
    behaviour = Behaviour()
    ran("grpc", behaviour, "--request-count", "1", "-b", "2", "-H", "X-Team: red")
    metadata, body = behaviour.seen[0]
    assert metadata["x-team"] == "red"
    request = messages.ModelInferRequest.FromString(body)
    assert request.model_name == "net"
    assert list(request.inputs[0].shape) == [2, 4]
    assert [len(raw) for raw in request.raw_input_contents] == [32]


@BOTH
def test_the_same_seed_sends_the_same_bytes(protocol: str) -> None:
    def sent(seed: str) -> bytes:
        behaviour = Behaviour()
        ran(protocol, behaviour, "--request-count", "1", "--seed", seed)
        return behaviour.seen[0][1]

    assert sent("1") == sent("1")
    assert sent("1") != sent("2")


def test_a_connection_closed_behind_an_answer_costs_no_request() -> None:
    behaviour = Behaviour(closes=lambda n: n % 3 == 0)
    (level,) = ran("http", behaviour, "--request-count", "20", "--concurrency-range", "2").levels
    assert (level.requests, level.failed) == (20, 0)


def test_a_request_dropped_on_a_used_connection_is_sent_again_and_told() -> None:
    behaviour = Behaviour(drops=lambda n: n == 5)
    (level,) = ran("http", behaviour, "--request-count", "20", "--concurrency-range", "2").levels
    assert (level.requests, level.failed, level.resent) == (20, 0, 1)


def test_a_request_dropped_on_a_new_connection_too_fails_alone() -> None:
    behaviour = Behaviour(drops=lambda n: n in (5, 6))
    (level,) = ran("http", behaviour, "--request-count", "20", "--concurrency-range", "1").levels
    (error,) = level.errors
    assert (level.requests, error.count, error.code, level.resent) == (19, 1, "connection lost", 1)


def test_an_answer_that_breaks_off_is_not_asked_for_again() -> None:
    behaviour = Behaviour(breaks=lambda n: n == 5)
    (level,) = ran("http", behaviour, "--request-count", "20", "--concurrency-range", "2").levels
    (error,) = level.errors
    assert (level.requests, error.code, level.resent) == (19, "connection lost", 0)


@BOTH
def test_a_slow_answer_counts_as_a_timeout_and_the_load_goes_on(protocol: str) -> None:
    (level,) = ran(
        protocol,
        Behaviour(delay_s=lambda n: 0.5 if n == 6 else 0.0005),
        *("--request-count", "12", "--concurrency-range", "2", "--timeout", "0.1"),
    ).levels
    assert [(e.code, e.count) for e in level.errors] == [("timeout", 1)]
    assert level.requests == 11


def test_levels_share_connections_and_many_slots_open_at_once() -> None:
    async def scene(config: SessionSpec) -> list[LevelResult]:
        async with Session(config) as session:
            settings = replace(config.level_settings, request_count=200)
            return [await session.measure(Level("concurrency", value), settings) for value in (100, 3, 17)]

    for protocol, serve in SERVERS.items():
        with serve(Behaviour()) as url:
            config = from_argv(SessionSpec, ["-i", protocol, "-u", url, *QUICK])
            with asyncio.Runner(loop_factory=event_loop) as runner:
                results = runner.run(scene(config))
        assert [(r.requests, r.failed) for r in results] == [(200, 0)] * 3


def test_a_decoupled_model_without_streams_is_refused() -> None:
    config = {"model_transaction_policy": {"decoupled": True}}
    with pytest.raises(MeasurementError, match="must be run with `--async` and `--streaming`"):
        ran("http", Behaviour(config=config))


def test_options_that_do_not_fit_the_model_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="takes"):
        ran("http", Behaviour(), "-b", "9")
