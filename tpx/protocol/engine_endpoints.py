"""Endpoints that an engine answers by itself: OpenAI's responses, Anthropic's messages, rerank and score.

Their requests reach the engine unchanged. Checked here are the names and kinds of the fields, what could cost
much, and that nothing refers to another machine; everything else is the engine's.
"""

from collections.abc import Mapping
from typing import cast

from tpx.protocol.json_checks import (
    Check,
    FieldRefused,
    check_data_url,
    check_each,
    check_members,
    check_schema,
    flag,
    kind_of,
    list_of,
    object_of,
    only,
    real,
    text_of,
    whole,
)
from tpx.protocol.json_values import JsonObject

_INT32 = 2**31 - 1
_MAX_ITEMS = 4096
_MAX_TOOLS = 128
_MAX_DOCUMENTS = 1024
_CALLS = ("tool_use", "function_call")
"""Types of items whose members are arguments of a tool, in which a URL is a text."""
_FILES = ("file_id", "file_url")


def _check_content(path: str, value: object) -> None:
    """Accept a text, or items with texts, calls of tools and images that are in the request itself."""
    if isinstance(value, str):
        return
    check_each(path, value, _MAX_ITEMS, lambda path, one: object_of(path, one))
    level: list[tuple[str, object]] = [(path, value)]
    while level:
        path, each = level.pop()
        if isinstance(each, list):
            level += [(f"{path}[{index}]", one) for index, one in enumerate(each)]
        elif isinstance(each, dict) and each.get("type") not in _CALLS:
            for name, member in each.items():
                if name in _FILES:
                    raise FieldRefused(f"{path}.{name}", "files are not supported")
                if isinstance(member, str) and name in ("url", "image_url", "video_url", "audio_url"):
                    check_data_url(f"{path}.{name}", member)
                elif isinstance(member, dict | list):
                    level.append((f"{path}.{name}", member))


def _check_tools(table: Mapping[str, Check], *required: str) -> Check:
    return lambda path, value: check_each(
        path, value, _MAX_TOOLS, lambda path, one: check_members(path, one, table, required)
    )


def _check_texts(path: str, value: object) -> None:
    """Accept a text or a list of them."""
    if not isinstance(value, str):
        check_each(path, value, _MAX_DOCUMENTS, text_of)


def _check_stops(path: str, value: object) -> None:
    check_each(path, value, 16, text_of)


def _check_format(path: str, value: object) -> None:
    """Check an object whose member `format` may have a schema, which becomes a grammar."""
    object_of(path, value)
    form = cast("JsonObject", value).get("format")
    if isinstance(form, dict) and form.get("schema") is not None:
        check_schema(f"{path}.format.schema", form["schema"])


_CHOICE = kind_of((str, dict), "a string or an object")
_SAMPLING: Mapping[str, Check] = {
    "model": text_of,
    "stream": flag,
    "temperature": real(0, 2),
    "top_p": real(0, 1),
    "top_k": whole(-1, _INT32),
    "tool_choice": _CHOICE,
    "metadata": object_of,
    "chat_template_kwargs": object_of,
}
_RESPONSES_TOOL: Mapping[str, Check] = {
    "type": only("function"),
    "name": text_of,
    "description": text_of,
    "parameters": check_schema,
    "strict": flag,
}
_MESSAGES_TOOL: Mapping[str, Check] = {
    "type": only("custom"),
    "name": text_of,
    "description": text_of,
    "input_schema": check_schema,
    "strict": flag,
    "cache_control": object_of,
}
_COUNTED: Mapping[str, Check] = {
    "model": text_of,
    "messages": _check_content,
    "system": _check_content,
    "tools": _check_tools(_MESSAGES_TOOL, "name", "input_schema"),
    "tool_choice": object_of,
    "thinking": object_of,
    "output_config": _check_format,
}
FIELDS: Mapping[str, Mapping[str, Check]] = {
    "responses": {
        **_SAMPLING,
        "input": _check_content,
        "instructions": text_of,
        "max_output_tokens": whole(1, _INT32),
        "max_tool_calls": whole(1, _INT32),
        "parallel_tool_calls": flag,
        "reasoning": object_of,
        "text": _check_format,
        "tools": _check_tools(_RESPONSES_TOOL, "type", "name"),
        "top_logprobs": whole(0, 20),
        "include": list_of,
        "truncation": only("auto", "disabled"),
        "user": text_of,
        "store": only(False),
        "background": only(False),
        "service_tier": only("auto", "default"),
        "presence_penalty": real(-2, 2),
        "frequency_penalty": real(-2, 2),
        "repetition_penalty": real(0.01, 10),
        "min_p": real(0, 1),
        "seed": whole(-(2**63), 2**63 - 1),
        "stop": _check_stops,
        "ignore_eos": flag,
    },
    "messages": {
        **_SAMPLING,
        **_COUNTED,
        "max_tokens": whole(1, _INT32),
        "stop_sequences": _check_stops,
    },
    "messages/count_tokens": _COUNTED,
    "rerank": {
        "model": text_of,
        "query": text_of,
        "documents": lambda path, value: check_each(path, value, _MAX_DOCUMENTS, text_of),
        "top_n": whole(1, _INT32),
        "user": text_of,
    },
    "score": {"model": text_of, "text_1": _check_texts, "text_2": _check_texts, "user": text_of},
}
"""Supported fields of each endpoint."""
REQUIRED: Mapping[str, tuple[str, ...]] = {
    "responses": ("input",),
    "messages": ("messages", "max_tokens"),
    "messages/count_tokens": ("messages",),
    "rerank": ("query", "documents"),
    "score": ("text_1", "text_2"),
}
