"""Services with OpenAI's API: times of tokens, their number, forms of requests, errors."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.transport import MemoryTransport
from tests.perf.clients.openai_server import Script, openai_server
from tests.perf.clients.running import level
from tpx.errors import UsageError
from tpx.perf.clients.openai import EventConnection, EventParser, OpenAiAnswer, has_output
from tpx.perf.results import LevelResult, Streaming
from tpx.perf.statistics.summaries import LatencySummary
from tpx.protocol.http1.chunked import MAX_CHUNKS
from tpx.protocol.http1.head import HeadCache, parse_response_head

CHAT = "v1/chat/completions"


def asked(script: Script, *words: str, path: str = CHAT) -> LevelResult:
    with openai_server(script) as url:
        return level("--service-kind", "openai", "--endpoint", path, "-m", "llm", "-u", url, *words)


def streaming_of(result: LevelResult) -> Streaming:
    assert result.streaming is not None
    return result.streaming


def times_of(result: LevelResult, name: str) -> LatencySummary:
    found = streaming_of(result).times(name)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("path", "splits", "client"),
    [
        (CHAT, False, "tpx"),
        (CHAT, True, "tpx"),
        ("/v1/completions", False, "tpx"),
        (CHAT, True, "library"),
    ],
)
def test_the_times_of_the_first_token_and_between_tokens_are_the_services(
    path: str, splits: bool, client: str
) -> None:
    script = Script(tokens=4, first_s=0.06, gap_s=0.03, splits=splits)
    words = ("--streaming", "--request-count", "8", "--concurrency-range", "2", "--client", client)
    result = asked(script, *words, path=path)
    streaming = streaming_of(result)
    assert (result.requests, streaming.responses) == (8, 32)
    # lower bounds are the script's own; above them is whatever the machine is busy with
    first, gaps = times_of(result, "ttft"), times_of(result, "icl")
    assert first.min_ns >= 0.060e9
    assert gaps.count == 24
    assert gaps.percentiles_ns[50.0] >= 0.015e9
    assert result.latency is not None
    assert result.latency.min_ns / 1e9 >= 0.150
    assert first.mean_ns + 3 * gaps.mean_ns == pytest.approx(result.latency.mean_ns, rel=0.01)


def test_tokens_are_what_the_service_says_they_are() -> None:
    streaming = streaming_of(asked(Script(gap_s=0), "--streaming", "--request-count", "5"))
    assert (streaming.responses, streaming.units) == (20, 40)
    silent = streaming_of(asked(Script(gap_s=0, usage=False), "--streaming", "--request-count", "5"))
    assert (silent.responses, silent.units) == (20, 20)
    assert silent.units_per_s > 0


def test_an_answer_without_streaming_is_one_response() -> None:
    result = asked(Script(first_s=0.01), "--request-count", "4")
    streaming = streaming_of(result)
    assert (streaming.responses, streaming.times("icl"), streaming.units) == (4, None, 16)
    assert result.latency is not None
    assert times_of(result, "ttft").mean_ns == pytest.approx(result.latency.mean_ns, rel=0.01)


def test_a_text_becomes_a_chat_and_headers_go_with_it() -> None:
    script = Script(first_s=0, gap_s=0)
    words = ("--streaming", "--string-data", "Why?", "-H", "Authorization: Bearer k")
    asked(script, *words, "--request-count", "1")
    assert script.bodies[0] == {
        "model": "llm",
        "messages": [{"role": "user", "content": "Why?"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert (script.headers[0], script.paths[0]) == ("Bearer k", "/v1/chat/completions")


def test_a_text_becomes_a_prompt_or_an_input() -> None:
    script = Script(first_s=0)
    asked(script, "--string-data", "Why?", "--request-count", "1", path="v1/completions")
    asked(script, "--string-data", "Why?", "--request-count", "1", path="v1/embeddings")
    assert script.bodies == [{"model": "llm", "prompt": "Why?"}, {"model": "llm", "input": "Why?"}]


def test_a_dot_is_the_root_of_the_service(tmp_path: Path) -> None:
    script = Script(first_s=0)
    (tmp_path / "data.json").write_text('{"data": [{"payload": [{"inputs": "Why?"}]}]}')
    asked(script, "--input-data", str(tmp_path / "data.json"), "--request-count", "1", path=".")
    assert script.paths[0] == "/"


def test_a_body_that_the_user_brings_is_sent_as_it_is(tmp_path: Path) -> None:
    script = Script(first_s=0, gap_s=0)
    brought = {"model": "other", "messages": [], "stream": True, "temperature": 0.5}
    (tmp_path / "data.json").write_text(json.dumps({"data": [{"payload": [brought]}]}))
    result = asked(script, "--input-data", str(tmp_path / "data.json"), "--request-count", "2")
    assert script.bodies[0] == brought
    assert streaming_of(result).responses == 8


def test_an_error_has_the_services_words() -> None:
    (error,) = asked(Script(status=404), "--request-count", "3").errors
    assert (error.code, error.count, error.message) == ("HTTP 404", 3, "no such model")


def test_an_error_in_the_middle_of_a_stream_fails_the_request() -> None:
    result = asked(Script(breaks_after=2, gap_s=0), "--streaming", "--request-count", "3")
    (error,) = result.errors
    assert (error.code, error.count, error.message) == ("OpenAI error", 3, "out of memory")
    assert result.requests == 0


@pytest.mark.parametrize("data", [b"5", b"{"])
def test_an_event_that_is_no_object_fails_the_request(data: bytes) -> None:
    answer = OpenAiAnswer(lambda _: None)
    answer.take(b"data: " + data + b"\n\n")
    assert answer.error == f"an event is not a JSON object: {data.decode()}"


def test_a_stream_that_ends_with_its_connection_is_read_too() -> None:
    result = asked(Script(chunked=False, gap_s=0.002), "--streaming", "--request-count", "3")
    streaming = streaming_of(result)
    assert (result.requests, streaming.responses) == (3, 12)
    assert times_of(result, "ttft").mean_ns < (result.latency.mean_ns if result.latency else 0)


def test_a_stream_may_have_more_tokens_than_a_request_may_have_chunks() -> None:
    connection = EventConnection(HeadCache(parse_response_head), memoryview(bytearray(1024)))
    connection.connection_made(MemoryTransport())
    answers: list[OpenAiAnswer] = []
    answer = OpenAiAnswer(answers.append)
    connection.send(b"GET", lambda response: answer.finish(response, connection.told))
    connection.on_piece = answer.take
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    event = b'data: {"choices":[{"text":"a"}]}\n\n'
    for read in (head, *[b"%x\r\n%b\r\n" % (len(event), event)] * (MAX_CHUNKS + 1), b"0\r\n\r\n"):
        connection.data_received(read)
    assert [(each.status, len(each.arrivals)) for each in answers] == [(200, MAX_CHUNKS + 1)]


def test_a_stream_that_is_too_large_breaks_its_connection() -> None:
    connection = EventConnection(HeadCache(parse_response_head), memoryview(bytearray(1024)))
    connection.connection_made(MemoryTransport())
    connection.limit_response(8)
    lost: list[str] = []
    connection.on_lost = lambda error: lost.append(error.message)
    pieces: list[bytes] = []
    connection.send(b"GET", lambda _: None)
    connection.on_piece = pieces.append
    for read in (b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n", *[b"5\r\nabcde\r\n"] * 2):
        connection.data_received(read)
    assert pieces == [b"abcde"]
    assert len(lost) == 1
    assert "exceeds the maximum allowed input size of 8 bytes" in lost[0]


def test_what_to_send_to_an_unknown_path_has_to_be_said() -> None:
    with pytest.raises(UsageError, match="--endpoint v1/unheard: the content of its requests is unknown"):
        asked(Script(), path="v1/unheard")


@pytest.mark.parametrize(
    ("event", "brings"),
    [
        ({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, False),
        ({"choices": [{"delta": {"role": "assistant", "refusal": None, "tool_calls": []}}]}, False),
        ({"choices": [{"delta": None}, 5]}, False),
        ({"choices": [{"delta": {"reasoning_content": "so"}}]}, True),
        ({"choices": [{"delta": {"role": "assistant", "content": "", "reasoning": "so"}}]}, True),
        ({"choices": [{"delta": {"reasoning_details": [{"text": "so"}]}}]}, True),
        ({"choices": [{"delta": {"refusal": "no"}}]}, True),
        ({"choices": [{"delta": {"function_call": {"name": "f", "arguments": ""}}}]}, True),
        ({"choices": [{"delta": {"audio": {"data": "UklG"}}}]}, True),
        ({"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]}, True),
        ({"choices": [{"delta": {}, "finish_reason": "length"}], "usage": {"completion_tokens": 4}}, False),
        ({"choices": []}, False),
        ({"choices": [{"text": "a"}]}, True),
        ({"model_name": "llm", "text_output": "a"}, True),
        ({"model_name": "llm", "text_output": ""}, False),
    ],
)
def test_a_piece_is_an_event_that_brings_something(event: dict[str, Any], brings: bool) -> None:
    assert has_output(event) is brings


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([b"data: a\n\ndata: b\n\n"], [b"a", b"b"]),
        ([b"da", b"ta: a\r", b"\n\r\n", b"data:b\r\n\r\n"], [b"a", b"b"]),
        ([b": comment\n\nevent: x\ndata: one\ndata: two\n\n"], [b"one\ntwo"]),
        ([b"id: 3\n\n", b"data: late"], []),
    ],
)
def test_events_are_cut_wherever_the_pieces_end(pieces: list[bytes], expected: list[bytes]) -> None:
    parser = EventParser()
    assert [data for piece in pieces for data in parser.feed(piece)] == expected


def test_the_figures_of_tokens_are_the_services(tmp_path: Path) -> None:
    script = Script(tokens=5, first_s=0.08, gap_s=0.03, reasoning=2, cached=9)
    result = asked(script, "--streaming", "--request-count", "6")
    streaming = streaming_of(result)
    found = {figure.name: figure.summary for figure in streaming.figures}
    assert list(found) == ["ttft", "ttst", "ttfo", "itl", "icl", "input_tokens", "output_tokens"]
    # lower bounds are nearly the script's own, as a response may be read late: 5 carry 10 tokens
    least_ns = {"ttft": 80e6, "ttst": 20e6, "ttfo": 139e6, "itl": 100e6 / 9, "icl": 15e6}
    for name, least in least_ns.items():
        assert least <= found[name].min_ns, name
    assert found["itl"].mean_ns * 9 == pytest.approx(
        (result.latency.mean_ns if result.latency else 0) - found["ttft"].mean_ns, rel=0.01
    )
    assert found["icl"].count == 6 * 4
    assert {found["input_tokens"].max_ns, found["output_tokens"].min_ns} == {12, 10}
    assert (streaming.prompt_units, streaming.cached_units, streaming.reasoning_units) == (72, 54, 24)
    tail = streaming.figure("ttft")
    assert tail is not None
    assert [each.percentile for each in tail.estimates] == [None, 50.0, 90.0, 95.0, 99.0, 99.9]
    assert tail.estimates[0].interval.low > 0


def test_without_reasoning_its_figures_are_left_out() -> None:
    streaming = streaming_of(asked(Script(gap_s=0), "--streaming", "--request-count", "3"))
    assert streaming.figure("ttfo") is None
    assert streaming.reasoning_units == 0


def test_a_connection_closed_behind_a_stream_costs_no_request() -> None:
    script = Script(first_s=0.001, gap_s=0, lingers=False)
    result = asked(script, "--streaming", "--request-count", "10")
    assert (result.requests, result.failed, len(script.bodies)) == (10, 0, 10)


def test_goodput_counts_the_requests_that_meet_every_bound() -> None:
    script = Script(first_s=0.02, gap_s=0)
    words = ("--streaming", "--request-count", "10")
    for bounds, good in (("ttft<10s,itl<10s,latency<60s", 10), ("ttft<10s,latency<1ms", 0), ("ttft<20ms", 0)):
        found = asked(script, *words, "--goodput", bounds).goodput
        assert found is not None
        assert (found.requests, found.bounds) == (good, tuple(bounds.split(",")))
        assert (found.per_s.value > 0) == (good > 0)


@pytest.mark.parametrize(
    ("objective", "outcome"),
    [
        ("ttft_p50<10s", "met"),
        ("ttft_mean<10s", "met"),
        ("ttft_min<1ms", "violated"),  # of a mean, one long pause on a busy machine leaves nothing certain
        ("itl_max<10s", "met"),
        ("ttst_max<1ns", "violated"),
        ("goodput>0.001", "met or borderline"),  # a few windows on a busy machine tell little of a rate
    ],
)
def test_objectives_may_bound_the_times_of_tokens(objective: str, outcome: str) -> None:
    words = ("--streaming", "--goodput", "ttft<10s", "--slo", objective, "--request-count", "60")
    (found,) = asked(Script(first_s=0.021, gap_s=0.001, tokens=2), *words, "--concurrency-range", "8").slo
    assert found.objective.text == objective
    assert found.outcome.value in outcome.split(" or ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--slo", "ttft<200ms"), "of which requests? ttft_p99"),
        (("--slo", "ttft_p99<200ms"), "times of streamed responses need --streaming"),
        (("--slo", "goodput>3"), "say which requests are good"),
        (("--goodput", "itl<20"), "a unit is missing"),
        (("--goodput", ","), "it is empty"),
    ],
)
def test_a_bound_that_means_nothing_is_refused(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        level("--service-kind", "openai", "--endpoint", CHAT, "-m", "llm", *words)
