"""Requests as real clients send them, shortened: what they say arrives, what says nothing is left out."""

import copy
import json
from typing import Any

import pytest

from tests.protocol.client_requests import CLAUDE_CODE, CODEX, FUNCTION, LEFT_EMPTY, USER, script
from tpx.protocol.client_habits import plain
from tpx.protocol.json_checks import FieldRefused
from tpx.protocol.openai import Endpoint, decode

ITS_OWN_ANSWER: dict[str, Any] = {
    "content": "b",
    "role": "assistant",
    "refusal": None,
    "annotations": [],
    "audio": None,
    "function_call": None,
    "tool_calls": [],
    "reasoning": "c",
}


def without(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


@pytest.mark.parametrize(
    ("endpoint", "given", "expected"),
    [
        (
            "messages",
            CLAUDE_CODE,
            {
                **without(CLAUDE_CODE, "context_management"),
                "tools": [{"name": "Workflow", "description": "d", "input_schema": script(None)}],
            },
        ),
        (
            "responses",
            CODEX,
            {**without(CODEX, "store", "prompt_cache_key", "client_metadata"), "tools": [FUNCTION]},
        ),
        (
            "chat/completions",
            LEFT_EMPTY,
            without(LEFT_EMPTY, "stop", "tools", "tool_choice", "prompt_cache_key"),
        ),
        (
            "chat/completions",
            {"model": "m", "messages": [USER, ITS_OWN_ANSWER, USER]},
            {
                "model": "m",
                "messages": [USER, without(ITS_OWN_ANSWER, "refusal", "annotations", "tool_calls"), USER],
            },
        ),
        (
            "chat/completions",
            {
                "model": "m",
                "messages": [USER],
                "user": "u",
                "metadata": {"a": "b"},
                "safety_identifier": "s",
                "service_tier": "auto",
                "store": False,
                "modalities": ["text"],
                "logprobs": False,
                "top_logprobs": 0,
                "stream": True,
                "stream_options": {"include_usage": True, "include_obfuscation": False},
            },
            {
                "model": "m",
                "messages": [USER],
                "logprobs": False,
                "stream": True,
                "stream_options": {"include_usage": True, "include_obfuscation": False},
            },
        ),
        ("responses", {**CODEX, "tools": CODEX["tools"][1:]}, None),
    ],
    ids=["Claude Code", "Codex", "empty lists", "an answer sent back", "hints", "no functions"],
)
def test_a_request_of_a_client_is_taken(
    endpoint: Endpoint, given: dict[str, Any], expected: dict[str, Any] | None
) -> None:
    before = copy.deepcopy(given)
    fields = decode(json.dumps(given).encode(), endpoint).fields
    if expected is None:
        assert {"tools", "tool_choice"}.isdisjoint(fields)
    else:
        assert fields == expected
    assert given == before


@pytest.mark.parametrize(
    ("endpoint", "fields", "param"),
    [
        ("chat/completions", {"store": True}, "store"),
        ("chat/completions", {"store": 0}, "store"),
        ("chat/completions", {"service_tier": "flex"}, "service_tier"),
        ("chat/completions", {"modalities": ["audio"]}, "modalities"),
        ("chat/completions", {"stop": {}}, "stop"),
        ("chat/completions", {"tools": [], "tool_choice": "required"}, "tool_choice"),
        ("chat/completions", {"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ("chat/completions", {"messages": [USER, 5]}, "messages[1]"),
        ("chat/completions", {"messages": [{**USER, "refusal": "no"}]}, "messages[0].refusal"),
        ("chat/completions", {"messages": [{**USER, "content": [5]}]}, "messages[0].content[0]"),
        ("responses", {"tools": [{"type": "mcp", "server_url": "http://x"}]}, "tools[0].type"),
        ("responses", {"tools": [{"type": "file_search"}]}, "tools[0].type"),
        ("responses", {"tools": [FUNCTION], "tool_choice": 5, "prompt_cache_key": 5, "input": []}, "input"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_says_something_is_refused(endpoint: Endpoint, fields: dict[str, Any], param: str) -> None:
    base: dict[str, Any] = {
        "model": "m",
        **({"input": "a"} if endpoint == "responses" else {"messages": [USER]}),
    }
    with pytest.raises(FieldRefused) as caught:
        decode(json.dumps({**base, **fields}).encode(), endpoint)
    assert caught.value.param == param


def test_a_tool_nested_deeply_is_left_to_the_checks() -> None:
    inner: Any = {"maxItems": 10**9}
    for _ in range(5000):
        inner = [inner]
    assert plain({"tools": [inner]}, "chat/completions")["tools"] == [inner]
