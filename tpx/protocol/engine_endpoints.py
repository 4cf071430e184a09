"""Endpoints that an engine answers by itself: OpenAI's responses, Anthropic's messages, rerank and score.

Their requests reach the engine unchanged. Checked here are the names of the fields, what could cost much, and
that nothing refers to another machine; everything else is the engine's.
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
    object_of,
    only,
    text_of,
    whole,
)
from tpx.protocol.json_values import JsonObject

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


def _check_texts(path: str, value: object) -> None:
    """Accept a text or a list of them."""
    if not isinstance(value, str):
        check_each(path, value, _MAX_DOCUMENTS, text_of)


def _check_format(path: str, value: object) -> None:
    """Check an object whose member `format` may have a schema, which becomes a grammar."""
    object_of(path, value)
    form = cast("JsonObject", value).get("format")
    if isinstance(form, dict) and form.get("schema") is not None:
        check_schema(f"{path}.format.schema", form["schema"])


def _check_tools(schema: str, kind: str) -> Check:
    """Return the check for tools of the client, whose parameters are in `schema`: others would be called by
    the engine, elsewhere.
    """
    names = ("name", "description", "strict", "cache_control")
    table = {**dict.fromkeys(names, _accept), "type": only(kind), schema: check_schema}
    return lambda path, value: check_each(
        path, value, _MAX_TOOLS, lambda path, one: check_members(path, one, table, ("name",))
    )


def _accept(path: str, value: object) -> None:
    """Leave a value to the engine."""


def _fields(names: str, **checks: Check) -> dict[str, Check]:
    return {**dict.fromkeys(names.split(), _accept), **checks, "model": text_of, "user": text_of}


_SAMPLING = "temperature top_p top_k tool_choice metadata"
_COUNTED = _fields(
    "tool_choice thinking",
    messages=_check_content,
    system=_check_content,
    tools=_check_tools("input_schema", "custom"),
    output_config=_check_format,
)
FIELDS: Mapping[str, Mapping[str, Check]] = {
    "responses": _fields(
        f"{_SAMPLING} instructions max_output_tokens max_tool_calls parallel_tool_calls reasoning include "
        "truncation top_logprobs min_p presence_penalty frequency_penalty repetition_penalty seed stop "
        "ignore_eos",
        input=_check_content,
        stream=flag,
        text=_check_format,
        chat_template_kwargs=object_of,
        tools=_check_tools("parameters", "function"),
        store=only(False),
        background=only(False),
        service_tier=only("auto", "default"),
    ),
    "messages": _COUNTED
    | _fields(f"{_SAMPLING} max_tokens stop_sequences", stream=flag, chat_template_kwargs=object_of),
    "messages/count_tokens": _COUNTED,
    "rerank": _fields(
        "",
        query=text_of,
        top_n=whole(1, 2**31 - 1),
        documents=lambda path, value: check_each(path, value, _MAX_DOCUMENTS, text_of),
    ),
    "score": _fields("", text_1=_check_texts, text_2=_check_texts),
}
"""Supported fields of each endpoint."""
REQUIRED: Mapping[str, tuple[str, ...]] = {
    "responses": ("input",),
    "messages": ("messages", "max_tokens"),
    "messages/count_tokens": ("messages",),
    "rerank": ("query", "documents"),
    "score": ("text_1", "text_2"),
}
