"""The text of a run, compared with what perf_analyzer 2.51 printed for the same figures."""

from dataclasses import replace

import pytest

from tests.perf.conftest import PLAIN_SPEC, make_level, make_window
from tpx.argv import from_argv
from tpx.perf.clients.model import ModelDescription
from tpx.perf.options import SessionSpec
from tpx.perf.report.level_text import level_block
from tpx.perf.report.model import rate, settings_block, summary
from tpx.perf.results import ErrorCount, LevelResult, ServerBreakdown, Verdict

LEVEL = """\
Request concurrency: 1
  Client: 
    Request count: 8152
    Throughput: 4478.72 infer/sec
    Avg latency: 221 usec (standard deviation 259 usec)
    p50 latency: 211 usec
    p90 latency: 275 usec
    p95 latency: 295 usec
    p99 latency: 340 usec
    Avg HTTP time: 218 usec (send/recv 26 usec + response wait 192 usec)
  Server: 
    Inference count: 8152
    Execution count: 8152
    Successful request count: 8152
    Avg request latency: 113 usec (overhead 1 usec + queue 25 usec + compute input 5 usec \
+ compute infer 63 usec + compute output 17 usec)

"""  # noqa: W291 (perf_analyzer's own blanks)


MODEL = ModelDescription(name="identity", inputs=())


def settings(*words: str, model: ModelDescription = MODEL) -> str:
    config = from_argv(SessionSpec, ["-m", "identity", *words])
    calls = config.wire.calls_asynchronously(sequences=model.scheduler == "sequence")
    return settings_block(config, model, asynchronous=calls)


def block(result: LevelResult, protocol: str = "http", *, verbose: bool = False) -> list[str]:
    words = ["-m", "identity", "-i", protocol, *["-v"] * verbose]
    return level_block(result, from_argv(SessionSpec, words)).splitlines()


def test_a_level_prints_as_perf_analyzer_prints_it() -> None:
    assert level_block(make_level(), PLAIN_SPEC) == LEVEL


def test_settings_of_a_range_show_both_limits() -> None:
    assert settings("--concurrency-range", "1:2", "-p", "500") == (
        "*** Measurement Settings ***\n"
        "  Batch size: 1\n"
        "  Service Kind: TRITON\n"
        '  Using "time_windows" mode for stabilization\n'
        "  Stabilizing using average latency and throughput\n"
        "  Measurement window: 500 msec\n"
        "  Latency limit: 0 msec\n"
        "  Concurrency limit: 2 concurrent requests\n"
        "  Using synchronous calls for inference\n"
    )


def test_settings_of_a_range_that_ends_at_one_show_no_limit() -> None:
    assert "limit" not in settings("--concurrency-range", "1:1")


def test_settings_of_streams_say_how_perf_analyzer_calls() -> None:
    model = replace(MODEL, decoupled=True)
    lines = settings("--streaming", "-i", "grpc", model=model).splitlines()
    assert lines[4] == "  Stabilizing using average throughput"
    assert lines[-2:] == [
        "  Using asynchronous calls for inference",
        "  Detected decoupled model, using the first response for measuring latency",
    ]


@pytest.mark.parametrize(("words", "calls"), [((), "asynchronous"), (("--sync",), "synchronous")])
def test_settings_of_sequences_are_asynchronous_unless_told(words: tuple[str, ...], calls: str) -> None:
    assert f"  Using {calls} calls" in settings(*words, model=replace(MODEL, scheduler="sequence"))


def test_settings_name_the_kind_of_service() -> None:
    assert "  Service Kind: TRITON_C_API\n" in settings(
        "--service-kind", "triton_c_api", "--model-repository", "."
    )


def test_settings_of_a_single_level_show_no_limit() -> None:
    assert "limit" not in settings("--concurrency-range", "4")


def test_settings_of_an_open_range_show_the_latency_limit_alone() -> None:
    lines = settings("--concurrency-range", "1:0", "-l", "20").splitlines()
    assert "  Latency limit: 20 msec" in lines
    assert not any("Concurrency limit" in line for line in lines)


def test_settings_of_count_windows_show_the_samples() -> None:
    text = settings("--measurement-mode", "count_windows", "--measurement-request-count", "200")
    assert '  Using "count_windows" mode for stabilization\n' in text
    assert "  Minimum number of samples in each window: 200\n" in text


def test_settings_of_a_percentile_keep_perf_analyzers_missing_space() -> None:
    assert "  Stabilizing using p95latency and throughput\n" in settings("--percentile", "95")


@pytest.mark.parametrize(("count", "noun"), [("1", "request"), ("100", "requests")])
def test_settings_of_a_request_count_replace_the_windows(count: str, noun: str) -> None:
    lines = settings("--request-count", count, "--warmup-request-count", count).splitlines()
    assert lines[3:] == [
        f"  Sending {count} warmup {noun}",
        f"  Sending {count} benchmark {noun}",
        "  Using synchronous calls for inference",
    ]


def test_verbose_shows_every_window_and_times_apart() -> None:
    lines = block(
        make_level(windows=(make_window(4478.72, 221.5), make_window(0, 0, failed=3))), verbose=True
    )
    assert lines[1] == "  Pass [1] throughput: 4478.72 infer/sec. Avg latency: 221 usec (std 0 usec). "
    assert lines[2] == "  Pass [2] no valid requests (3 failed)"
    assert "    Avg client overhead: 1.11%" in lines
    assert "    Avg HTTP time: 218 usec (send 26 usec + response wait 192 usec + receive 0 usec)" in lines


def test_a_percentile_takes_the_place_of_the_mean() -> None:
    window = replace(make_window(4720.4, 276), stabilizing_percentile=95.0)
    lines = block(make_level(percentile=95.0, windows=(window,)), verbose=True)
    assert lines[1] == "  Pass [1] throughput: 4720.4 infer/sec. p95 latency: 276 usec"
    assert not any("Avg latency:" in line for line in lines)


def test_grpc_speaks_of_marshalling() -> None:
    assert (
        "    Avg gRPC time: 218 usec ((un)marshal request/response 26 usec + response wait 192 usec)"
        in block(make_level(), "grpc")
    )
    assert (
        "    Avg gRPC time: 218 usec (marshal 26 usec + response wait 192 usec + unmarshal 0 usec)"
        in block(make_level(), "grpc", verbose=True)
    )


def test_an_engine_in_this_process_has_no_transport_and_a_processor_of_its_own_share() -> None:
    engine = ["-m", "identity", "--service-kind", "inprocess", "--model-repository", "models"]
    busy, quiet = make_level(client_busy=0.98), from_argv(SessionSpec, engine)
    lines = level_block(busy, quiet).splitlines()
    assert "    Avg engine time: 218 usec (submit/take 26 usec + response wait 192 usec)" in lines
    assert not any("WARNING" in line or "HTTP" in line for line in lines)
    lines = level_block(busy, from_argv(SessionSpec, [*engine, "-v"])).splitlines()
    assert "    Avg client and engine busy: 98.00%" in lines
    assert "    Avg engine time: 218 usec (submit 26 usec + response wait 192 usec + take 0 usec)" in lines
    assert any("[WARNING] The client was busy 98% of the time" in line for line in block(busy))


def test_without_statistics_there_is_no_server_part() -> None:
    assert not any("Server" in line for line in block(make_level(server=None)))


def test_a_server_that_counted_nothing_says_only_that() -> None:
    server = ServerBreakdown(model="m", version="1")
    assert block(make_level(server=server))[-3:] == ["  Server: ", "    Request count: 0", ""]


def test_errors_are_shown_with_their_count_and_first_text() -> None:
    errors = (ErrorCount(code="HTTP 500", count=3, message="out of memory"),)
    assert "    Errors: 3 x HTTP 500: out of memory" in block(make_level(errors=errors))


def test_a_level_without_a_success_prints_a_count_of_zero() -> None:
    lines = block(make_level(requests=0, latency=None, client=None, server=None, verdict=Verdict.ERRORS))
    assert lines == ["Request concurrency: 1", "  Client: ", "    Request count: 0", ""]


def test_a_busy_client_is_a_warning() -> None:
    assert block(make_level(client_busy=0.95))[-2].startswith("[WARNING] The client was busy 95% of the time")


def test_the_summary_is_one_line_a_level() -> None:
    levels = [make_level(1), make_level(2, 5997.64)]
    assert summary(levels) == (
        "Inferences/Second vs. Client Average Batch Latency\n"
        "Concurrency: 1, throughput: 4478.72 infer/sec, latency 221 usec\n"
        "Concurrency: 2, throughput: 5997.64 infer/sec, latency 221 usec\n"
    )


def test_the_summary_of_a_percentile_names_it() -> None:
    text = summary([make_level(percentile=95.0)])
    assert text.startswith("Inferences/Second vs. Client p95 Batch Latency\n")
    assert text.endswith("latency 295 usec\n")


def test_the_summary_flags_what_perf_analyzer_would_have_left_out() -> None:
    levels = [
        make_level(verdict=Verdict.OVER_LIMIT),
        make_level(2, verdict=Verdict.UNSTABLE, interrupted=True),
    ]
    first, second = summary(levels).splitlines()[1:]
    assert first.endswith("usec (over_limit)")
    assert second.endswith("usec (unstable, interrupted)")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (69.6, "69.6"),
        (4478.7222, "4478.72"),
        (18917.33, "18917.3"),
        (1234567.0, "1.23457e+06"),
        (100.0, "100"),
    ],
)
def test_rates_have_six_significant_digits(value: float, text: str) -> None:
    assert rate(value) == text
