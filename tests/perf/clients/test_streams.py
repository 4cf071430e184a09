"""Requests over gRPC streams, against tpx itself: decoupled models, ordinary ones, errors, ended streams."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.perf.clients.running import level, ran
from tests.serving.frontends.streams import write_streaming_models
from tests.serving.live import Live, serving
from tpx.errors import MeasurementError
from tpx.perf.clients.grpc_stream import scan
from tpx.protocol import messages

FOUR = ("--shape", "IN:4", "--shape", "DELAY:4", "--input-data", "zero")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository: Path = tmp_path_factory.mktemp("models")
    write_streaming_models(repository)
    with serving(repository) as server:
        yield server


def grpc_url(live: Live) -> str:
    return f"127.0.0.1:{live.ports['GRPCInferenceService']}"


def stream(live: Live, *words: str) -> tuple[str, ...]:
    return ("-i", "grpc", "-u", f"{grpc_url(live)}", "--streaming", *words)


@pytest.mark.parametrize(
    "words", [(), ("--client", "library"), ("--client", "library", "--stream-per-request")]
)
def test_every_response_of_a_decoupled_model_is_counted(live: Live, words: tuple[str, ...]) -> None:
    load = ("--request-count", "25", "--concurrency-range", "3")
    result = level(*stream(live, "-m", "repeat", *FOUR, *load, *words))
    assert (result.requests, result.failed) == (25, 0)
    assert result.streaming is not None
    assert result.streaming.responses == 100
    assert result.streaming.responses_per_s == pytest.approx(4 * result.throughput_infer_per_s, rel=0.01)


def test_the_first_and_the_last_response_have_latencies_of_their_own(live: Live) -> None:
    words = stream(live, "-m", "repeat", "--shape", "IN:3", "--shape", "DELAY:3", "--request-count", "6")
    # seeded delays of some milliseconds before each response
    result = level(*words, "--input-data", "random")
    assert result.streaming is not None
    assert result.latency is not None
    first, gaps = (result.streaming.times(name) for name in ("ttft", "icl"))
    assert first is not None
    assert gaps is not None
    assert (first.count, gaps.count) == (6, 12)
    assert first.mean_ns + 2 * gaps.mean_ns == pytest.approx(result.latency.mean_ns, rel=0.01)


def test_an_ordinary_model_has_one_response_over_a_stream_too(live: Live) -> None:
    words = stream(live, "-m", "double", "--request-count", "60", "--concurrency-range", "40")
    result = level(*words)
    assert (result.requests, result.failed) == (60, 0)
    assert result.streaming is not None
    assert (result.streaming.responses, result.streaming.times("icl")) == (60, None)


def test_a_rate_goes_over_streams(live: Live) -> None:
    result = level(
        *stream(live, "-m", "repeat", *FOUR, "--request-rate-range", "200", "--request-count", "300")
    )
    assert (result.requests, result.failed) == (300, 0)
    assert 0 < result.throughput_infer_per_s < 202
    assert result.open_loop is not None
    assert result.streaming is not None
    assert result.streaming.responses == 4 * result.requests


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_messages_of_a_stream_are_compressed(live: Live, algorithm: str) -> None:
    words = stream(live, "-m", "repeat", *FOUR, "--grpc-compression-algorithm", algorithm)
    result = level(*words, "--request-count", "10")
    assert (result.requests, result.failed) == (10, 0)


def test_an_error_in_a_stream_fails_its_request_alone_in_the_servers_words(live: Live) -> None:
    words = stream(live, "-m", "double", "--request-count", "8", "--concurrency-range", "2")
    result = level(*words, "--request-parameter", "triton_nonsense:1:int")
    (error,) = result.errors
    assert (error.code, error.count, result.failed) == ("gRPC stream", 8, 8)
    assert "triton_" in error.message


def test_a_decoupled_model_needs_a_stream(live: Live) -> None:
    with pytest.raises(MeasurementError, match="Decoupled models must be run with"):
        ran("-i", "grpc", "-u", f"{grpc_url(live)}", "-m", "repeat")


def message(*, final: bool | None, outputs: int, error: str = "", request_id: str = "0000002a") -> bytes:
    answer = messages.ModelStreamInferResponse(error_message=error)
    inner = answer.infer_response
    inner.model_name, inner.model_version, inner.id = "m" * 200, "1", request_id
    inner.parameters["another"].string_param = "triton_final_response"
    if final is not None:
        inner.parameters["triton_final_response"].bool_param = final
    for number in range(outputs):
        inner.outputs.add(name=f"y{number}", datatype="FP32", shape=[1])
        inner.raw_output_contents.append(b"\x1a\x02\x22\x02" * 100)
    return bytes(answer.SerializeToString())


@pytest.mark.parametrize(
    ("final", "outputs", "error", "expected"),
    [
        (None, 1, "", (True, False)),
        (None, 0, "", (True, False)),
        (False, 1, "", (False, False)),
        (False, 0, "", (False, False)),
        (True, 2, "", (True, False)),
        (True, 0, "", (True, True)),
        (True, 0, "broken", (True, False)),
        (False, 0, "broken", (False, False)),
    ],
)
def test_a_message_says_whether_anything_follows(
    final: bool | None, outputs: int, error: str, expected: tuple[bool, bool]
) -> None:
    for wrap in (bytes, bytearray, memoryview):
        found = scan(wrap(message(final=final, outputs=outputs, error=error)))
        assert found == (b"0000002a", *expected, error.encode())


def test_a_message_without_an_id_has_none() -> None:
    assert scan(message(final=True, outputs=1, request_id=""))[0] == b""
