"""Requests of OpenAI's API: what is accepted, what is refused, and that an error names the field."""

import json
from typing import Any

import pytest

from tpx.errors import InvalidRequest
from tpx.protocol.json_checks import FieldRefused, param_of
from tpx.protocol.openai import (
    MAX_BODY_BYTES,
    OWN,
    Endpoint,
    decode,
    endpoint_of,
    validate,
)
from tpx.serving.frontends.openai import error_body

USER = {"role": "user", "content": "Hello"}
BASE: dict[Endpoint, dict[str, Any]] = {
    "chat/completions": {"model": "m", "messages": [USER]},
    "completions": {"model": "m", "prompt": "Hello"},
    "embeddings": {"model": "m", "input": "Hello"},
    "responses": {"model": "m", "input": "Hello"},
    "messages": {"model": "m", "messages": [USER], "max_tokens": 1},
    "messages/count_tokens": {"model": "m", "messages": [USER]},
    "rerank": {"model": "m", "query": "q", "documents": ["a"]},
    "score": {"model": "m", "text_1": "a", "text_2": ["b"]},
}
PICTURE = "data:image/png;base64,aaaa"


def schema(inner: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": inner}}}


def nested(levels: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for _ in range(levels):
        out = {"items": out}
    return out


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **function}}


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ACCEPTED: list[tuple[Endpoint, dict[str, Any]]] = [
    ("chat/completions", {"stream": True, "stream_options": {"include_usage": True}}),
    ("chat/completions", {"stream": None, "stop": None, "tools": None, "tool_choice": None}),
    ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}),
    ("chat/completions", {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}]}),
    (
        "chat/completions",
        {"messages": [{**USER, "content": [{"type": "image_url", "image_url": {"url": PICTURE}}]}]},
    ),
    ("chat/completions", {"tools": [tool(parameters={"type": "object"})], "tool_choice": "required"}),
    ("chat/completions", {"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "f"}}}),
    ("chat/completions", schema({"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}})),
    ("chat/completions", {"logprobs": True, "top_logprobs": 3, "max_completion_tokens": 1}),
    ("completions", {"prompt": ["a", [1, 2]], "logprobs": 0, "logit_bias": {"5": -100}}),
    ("completions", {"prompt": [1, 2, 3], "stop": ["a", "b"], "temperature": 0, "echo": False}),
    ("embeddings", {"input": [[1, 2], [3]], "encoding_format": "base64"}),
    (
        "responses",
        {
            "input": [
                {"role": "user", "content": [{"type": "input_image", "image_url": PICTURE}]},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            ],
            "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
            "text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}}},
        },
    ),
    (
        "messages",
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "image", "source": {"type": "base64", "data": "aaaa"}}],
                },
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "i", "name": "f", "input": {"url": "http://x"}}],
                },
            ],
            "tools": [{"name": "f", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "any"},
            "system": [{"type": "text", "text": "a"}],
            "stop_sequences": ["b"],
        },
    ),
    ("messages/count_tokens", {}),
    ("rerank", {"top_n": 1}),
    ("score", {"text_2": "b"}),
]


@pytest.mark.parametrize(("endpoint", "fields"), ACCEPTED, ids=lambda value: str(value)[:60])
def test_supported_fields_are_accepted_and_nulls_are_absent(
    endpoint: Endpoint, fields: dict[str, Any]
) -> None:
    given = {**BASE[endpoint], **fields}
    request = decode(json.dumps(given).encode(), endpoint)
    assert request.fields == {name: value for name, value in given.items() if value is not None}
    assert request.model == "m"
    assert endpoint in OWN or endpoint_of(given) == endpoint


REFUSED: list[tuple[Endpoint, dict[str, Any], str]] = [
    ("chat/completions", {"foo": 1}, "foo"),
    ("chat/completions", {"model": None}, "model"),
    ("chat/completions", {"messages": None}, "messages"),
    ("chat/completions", {"messages": []}, "messages"),
    ("chat/completions", {"messages": "x"}, "messages"),
    ("chat/completions", {"messages": [{"content": "x"}]}, "messages[0].role"),
    ("chat/completions", {"messages": [USER, {"role": "king", "content": "x"}]}, "messages[1].role"),
    ("chat/completions", {"messages": [{**USER, "audio": {}}]}, "messages[0].audio"),
    (
        "chat/completions",
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}
            ]
        },
        "messages[0].content[0].image_url.url",
    ),
    ("chat/completions", {"max_tokens": 0}, "max_tokens"),
    ("chat/completions", {"max_tokens": True}, "max_tokens"),
    ("chat/completions", {"max_tokens": 1.5}, "max_tokens"),
    ("chat/completions", {"max_tokens": 1, "max_completion_tokens": 1}, "max_tokens"),
    ("chat/completions", {"temperature": "hot"}, "temperature"),
    ("chat/completions", {"temperature": 3}, "temperature"),
    ("chat/completions", {"stream_options": {"include_usage": True}}, "stream_options"),
    ("chat/completions", {"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
    ("chat/completions", {"top_logprobs": 2}, "top_logprobs"),
    ("chat/completions", {"tool_choice": "required"}, "tool_choice"),
    ("chat/completions", {"tools": [tool()], "tool_choice": "always"}, "tool_choice"),
    ("chat/completions", {"tools": [{"type": "custom", "function": {"name": "f"}}]}, "tools[0].type"),
    ("chat/completions", {"tools": [tool(name="a b")]}, "tools[0].function.name"),
    ("chat/completions", {"tools": [tool()] * 129}, "tools"),
    ("chat/completions", {"response_format": {"type": "xml"}}, "response_format.type"),
    ("chat/completions", {"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ("chat/completions", {"store": True}, "store"),
    ("chat/completions", {"chat_template_kwargs": {"a": []}}, "chat_template_kwargs.a"),
    ("chat/completions", schema(nested(40)), "response_format.json_schema.schema"),
    ("chat/completions", schema({"maxItems": 10**9}), "response_format.json_schema.schema.maxItems"),
    ("chat/completions", schema({"$ref": "http://x/y"}), "response_format.json_schema.schema.$ref"),
    ("chat/completions", schema({"pattern": "(a{99}){99}"}), "response_format.json_schema.schema.pattern"),
    ("chat/completions", schema({"enum": ["x" * 70_000]}), "response_format.json_schema.schema"),
    ("completions", {"prompt": ""}, "prompt"),
    ("completions", {"prompt": []}, "prompt"),
    ("completions", {"prompt": [""]}, "prompt[0]"),
    ("completions", {"prompt": [[]]}, "prompt[0]"),
    ("completions", {"prompt": [1, "a"]}, "prompt[1]"),
    ("completions", {"prompt": [-1]}, "prompt[0]"),
    ("completions", {"prompt": ["a"] * 200}, "prompt"),
    ("completions", {"stop": ["a"] * 17}, "stop"),
    ("completions", {"stop": [""]}, "stop[0]"),
    ("completions", {"stop": "x" * 2000}, "stop"),
    ("completions", {"suffix": "x"}, "suffix"),
    ("completions", {"best_of": 2}, "best_of"),
    ("completions", {"logprobs": 21}, "logprobs"),
    ("completions", {"logit_bias": {"x": 1}}, "logit_bias"),
    ("completions", {"logit_bias": {"1": 101}}, "logit_bias.1"),
    ("completions", {"logit_bias": {str(i): 1 for i in range(2000)}}, "logit_bias"),
    ("completions", {"n": 129}, "n"),
    ("completions", {"seed": 2**64}, "seed"),
    ("embeddings", {"dimensions": 3}, "dimensions"),
    ("embeddings", {"encoding_format": "hex"}, "encoding_format"),
    ("responses", {"previous_response_id": "r"}, "previous_response_id"),
    ("responses", {"store": True}, "store"),
    ("responses", {"input": None}, "input"),
    ("responses", {"input": [{"content": [{"image_url": "http://x"}]}]}, "input[0].content[0].image_url"),
    ("responses", {"input": [{"content": [{"file_url": "http://x"}]}]}, "input[0].content[0].file_url"),
    ("responses", {"tools": [{"type": "mcp", "server_url": "http://x"}]}, "tools[0].type"),
    ("responses", {"text": {"format": {"schema": nested(40)}}}, "text.format.schema"),
    ("messages", {"max_tokens": None}, "max_tokens"),
    (
        "messages",
        {"messages": [{"content": [{"type": "image", "source": {"url": "http://x"}}]}]},
        "messages[0].content[0].source.url",
    ),
    ("messages", {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
    ("messages/count_tokens", {"stream": True}, "stream"),
    ("rerank", {"documents": []}, "documents"),
    ("rerank", {"top_n": "one"}, "top_n"),
    ("rerank", {"documents": [{"text": "a"}]}, "documents[0]"),
    ("score", {"text_2": [1]}, "text_2[0]"),
]


@pytest.mark.parametrize(("endpoint", "fields", "param"), REFUSED, ids=lambda value: str(value)[:60])
def test_a_refused_field_is_named(endpoint: Endpoint, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(FieldRefused) as caught:
        validate({**BASE[endpoint], **fields}, endpoint)
    assert caught.value.param == param
    assert param_of(caught.value.message) == param


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "no JSON"),
        (b"[]", "must be a JSON object"),
        (b'{"model":"\xff"}', "no JSON"),
        (b"[" * 5000, "no JSON"),
        (b" " * (MAX_BODY_BYTES + 1), "more than"),
    ],
)
def test_a_body_that_is_no_request_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        decode(body, "completions")
    with pytest.raises(InvalidRequest, match="there is no endpoint 'images'"):
        decode(b"{}", "images")


def test_an_error_quotes_a_client_s_text_safely() -> None:
    with pytest.raises(FieldRefused) as caught:
        validate({**BASE["completions"], "\ud800\n" * 100: 1}, "completions")
    body = json.loads(error_body(caught.value.message, "invalid_request_error", None, None))
    assert len(body["error"]["message"]) < 500
    assert "\n" not in body["error"]["message"]
