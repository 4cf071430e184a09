"""A test that every engine has to pass."""

from typing import Any

import openai

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
