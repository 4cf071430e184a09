"""Answers of the engine: chunks joined to a response, passed on, or as tensors."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tpx.serving.backends.language.views import (
    LegacyLogprobs,
    OpenAiStream,
    OpenAiWhole,
    TextView,
    TokenCounts,
    UnreadView,
)

Fields = Sequence[tuple[str, bytes | int | float]]
TIMINGS = {"prompt_n": 3, "cache_n": 2, "predicted_n": 4}


def chunk(choice: dict[str, Any], **more: Any) -> bytes:
    whole = {"index": 0, "finish_reason": None, **choice}
    body = {"choices": [whole], "id": "i", "object": "chat.completion.chunk", **more}
    return json.dumps(body, separators=(",", ":")).encode()


def last(**more: Any) -> bytes:
    return chunk({"finish_reason": "stop", "delta": {}, **more}, timings=TIMINGS)


class Sent:
    def __init__(self) -> None:
        self.fields: list[Fields] = []

    def __call__(self, fields: Fields) -> None:
        self.fields.append(fields)

    @property
    def responses(self) -> list[Any]:
        return [json.loads(value) for ((_, value),) in self.fields if isinstance(value, bytes)]


@pytest.mark.parametrize("begun", [{"arguments": "{"}, {}], ids=["as llama.cpp", "as vLLM"])
def test_the_pieces_of_a_tool_call_are_joined_by_their_index(begun: dict[str, str]) -> None:
    sent = Sent()
    view = OpenAiWhole(sent, 1, legacy_logprobs=-1)
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", **begun}}
    view.take(chunk({"delta": {"role": "assistant", "content": None}}))
    view.take(chunk({"delta": {"tool_calls": [call]}}))
    rest = "}" if begun else "{}"
    view.take(chunk({"delta": {"tool_calls": [{"index": 0, "function": {"arguments": rest}}]}}))
    view.take(last(finish_reason="tool_calls"))
    view.end()
    [response] = sent.responses
    assert response["object"] == "chat.completion"
    assert response["choices"] == [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "logprobs": None,
            "message": {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
        }
    ]


def test_several_choices_count_their_prompt_once() -> None:
    sent = Sent()
    view = OpenAiWhole(sent, 2, legacy_logprobs=-1)
    for index in (1, 0):
        view.take(chunk({"index": index, "delta": {"content": f"text {index}"}}))
        view.take(last(index=index))
    view.end()
    [response] = sent.responses
    assert [choice["message"]["content"] for choice in response["choices"]] == ["text 0", "text 1"]
    assert response["usage"]["prompt_tokens"] == 5
    assert response["usage"]["completion_tokens"] == 8
    assert "timings" not in response


def test_a_stream_passes_chunks_on_unread_and_ends_with_the_usage_that_was_asked_for() -> None:
    sent = Sent()
    view = OpenAiStream(sent, 1, include_usage=True, legacy_logprobs=-1)
    piece = chunk({"delta": {"content": 'says "timings":{'}})  # quotes within a text are escaped
    for data in (piece, last()):
        view.take(data)
    view.end()
    assert sent.fields[0][0][1] is piece
    assert "timings" not in sent.responses[1]
    assert sent.responses[2]["choices"] == []
    assert sent.responses[2]["usage"]["total_tokens"] == 9


def test_log_probabilities_of_completions_have_their_older_form() -> None:
    tokens = [{"token": "a", "logprob": -1.0, "top_logprobs": [{"token": "b", "logprob": -0.5}]}]
    first: dict[str, Any] = {"index": 0, "text": "a", "logprobs": {"content": tokens}}
    second: dict[str, Any] = {"index": 0, "text": "a", "logprobs": {"content": tokens}}
    converted = LegacyLogprobs(1)
    converted.convert(first)
    converted.convert(second)
    assert first["logprobs"] == {
        "tokens": ["a"],
        "token_logprobs": [-1.0],
        "top_logprobs": [{"b": -0.5}],
        "text_offset": [0],
    }
    assert second["logprobs"]["text_offset"] == [1]
    converted.convert(second)
    assert second["logprobs"]["text_offset"] == [1], "an engine may have that form itself"


def text(piece: str, reason: str | None = None) -> bytes:
    more = {"timings": TIMINGS} if reason else {}
    return chunk({"text": piece, "finish_reason": reason, "logprobs": None}, **more)


@pytest.mark.parametrize("stream", [False, True])
def test_tensors_are_those_of_triton_s_vllm_backend(stream: bool) -> None:
    sent = Sent()
    wanted = frozenset({"finish_reason", "num_input_tokens", "num_output_tokens"})
    view = TextView(sent, b"" if stream else b"Q", stream=stream, wanted=wanted)
    view.note_prompt(5)
    for data in (text("a"), text("b"), text("", "length")):
        view.take(data)
    view.end()
    rows = [dict(fields) for fields in sent.fields]
    if stream:
        assert [row["text_output"] for row in rows] == [b"a", b"b", b""]
        assert [row["finish_reason"] for row in rows] == [b"None", b"None", b"length"]
        assert [row["num_output_tokens"] for row in rows] == [1, 1, 0]
        assert {row["num_input_tokens"] for row in rows} == {5}
        view.take(text("c", "length"))
        assert dict(sent.fields[-1])["num_output_tokens"] == 1, "the last chunk of vLLM has a token"
    else:
        assert rows == [
            {"text_output": b"Qab", "finish_reason": b"length", "num_input_tokens": 5, "num_output_tokens": 4}
        ]


def test_token_counts_have_openai_s_names() -> None:
    counts = TokenCounts(1)
    counts.add(TIMINGS)
    assert counts.as_json() == {
        "prompt_tokens": 5,
        "completion_tokens": 4,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


@pytest.mark.parametrize(
    ("parts", "counts"),
    [
        ([b'{"results":[],"usage":{"prompt_tokens":12,"total_tokens":12}}'], (12, 0)),
        ([b'{"usage":{"cache_read_input_tokens":30,"input_tokens":7,"output_tokens":3}}'], (37, 3)),
        (
            [
                b'event: message_start\ndata: {"message":{"usage":{"input_tokens":8,"output_tokens":0}}}',
                b'event: content_block_delta\ndata: {"delta":{"text":"\\"usage\\":{\\"input_tokens\\":5"}}',
                b'event: message_delta\ndata: {"usage":{"output_tokens":3}}',
            ],
            (8, 3),
        ),
        (
            [
                b'event: response.completed\ndata: {"response":{"usage":{"input_tokens":4,'
                b'"input_tokens_details":{"cached_tokens":2},"output_tokens":6,"total_tokens":10}}}'
            ],
            (4, 6),
        ),
    ],
    ids=["rerank", "a cached message", "messages", "responses"],
)
def test_what_the_engine_writes_passes_unread_but_for_its_numbers_of_tokens(
    parts: list[bytes], counts: tuple[int, int]
) -> None:
    sent = Sent()
    view = UnreadView(sent, stream=len(parts) > 1)
    for part in parts:
        view.take(part)
    view.end()
    assert [fields[0][1] for fields in sent.fields] == parts
    assert (view.usage.prompt, view.usage.completion) == counts


@pytest.mark.parametrize("stream", [True, False])
def test_log_probabilities_of_tokens_are_outputs_if_wanted(stream: bool) -> None:
    sent = Sent()
    wanted = frozenset({"logprobs", "cumulative_logprob"})
    view = TextView(sent, b"", stream=stream, wanted=wanted)
    token = {"7": {"logprob": -1.5, "rank": 1, "decoded_token": "a"}}
    view.take(chunk({"text": "a", "logprobs": [token], "cumulative_logprob": -1.5}, tokens=1))
    view.take(last(text="b", logprobs=[token], cumulative_logprob=-3.0, tokens=1))
    found = [dict(fields) for fields in sent.fields]
    assert [each["cumulative_logprob"] for each in found] == ([-1.5, -3.0] if stream else [-3.0])
    lists = [json.loads(str(each["logprobs"], "utf-8")) for each in found]  # type: ignore[arg-type]
    assert lists == ([[token], [token]] if stream else [[token, token]])
