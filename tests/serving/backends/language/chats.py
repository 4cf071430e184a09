"""Tests that every engine has to pass."""

import json
from collections.abc import Callable
from typing import Any

import openai
import pytest

from tests.protocol.client_requests import CLAUDE_CODE, CODEX, LEFT_EMPTY

USER: Any = [{"role": "user", "content": "And it came to pass"}]


def check_a_stream_has_the_text_of_the_whole_response(client: openai.OpenAI) -> str:
    """Ask for a chat in both ways, and return its text."""
    fields: Any = {"model": "tiny", "messages": USER, "max_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(**fields)
    chunks = list(
        client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert whole.choices[0].message.role == chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 12
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens == 8
    return text


def check_responses_stream_as_they_are_whole(client: openai.OpenAI) -> str:
    """Ask for a response in both ways, and return its text."""
    fields: Any = {"model": "tiny", "input": "And it came to pass", "max_output_tokens": 12, "temperature": 0}
    whole = client.responses.create(**fields)
    events = list(client.responses.create(**fields, stream=True))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text
    assert events[-1].type in ("response.completed", "response.incomplete")
    assert events[-1].response.usage is not None
    assert whole.usage is not None
    assert events[-1].response.usage.output_tokens == whole.usage.output_tokens == 12
    part = {"type": "input_image", "image_url": "http://127.0.0.1:1/"}
    elsewhere = {**fields, "input": [{"role": "user", "content": [part]}]}
    with pytest.raises(openai.BadRequestError, match="nothing is fetched"):
        client.responses.create(**elsewhere)
    with pytest.raises(openai.BadRequestError, match="unknown or unsupported field of /v1/responses"):
        client.responses.create(**fields, previous_response_id="r")
    return text


def check_messages_stream_as_they_are_whole(
    post: Callable[[str, Any], Any], caplog: pytest.LogCaptureFixture
) -> str:
    """Ask for a message in both ways, and return its text."""
    fields = {"model": "tiny", "messages": USER, "max_tokens": 12, "temperature": 0}
    whole = json.loads(post("/v1/messages", fields).body)
    assert whole["usage"]["output_tokens"] == 12
    caplog.set_level("DEBUG", "tpx.serving.frontends.access_log")
    events = post("/v1/messages", {**fields, "stream": True}).body.decode().split("\n\n")
    assert "Tokens: /v1/messages tiny: 8 of the prompt, 12 generated" in caplog.text
    data = [json.loads(line[6:]) for event in events for line in event.split("\n") if line[:7] == "data: {"]
    pieces = [each["delta"]["text"] for each in data if each["type"] == "content_block_delta"]
    assert "".join(pieces) == whole["content"][0]["text"]
    assert events[0].startswith("event: message_start\n")
    count = post("/v1/messages/count_tokens", {"model": "tiny", "messages": USER})
    assert json.loads(count.body)["input_tokens"] == 8
    return "".join(pieces)


def check_requests_of_coding_agents_are_answered(post: Callable[[str, Any], Any]) -> None:
    """Send requests as Claude Code and Codex do, and one with empty lists."""
    for path, fields, most in (
        ("/v1/messages", CLAUDE_CODE, "max_tokens"),
        ("/v1/responses", CODEX, "max_output_tokens"),
        ("/v1/chat/completions", LEFT_EMPTY, "max_completion_tokens"),
    ):
        answer = post(path, {**fields, "model": "tiny", most: 4})
        assert answer.status == 200, (path, answer.body)
        assert b"error" not in answer.body, path
