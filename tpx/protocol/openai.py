"""Requests of OpenAI's API: the fields that are supported, their limits, and the form of its errors.

A message of InvalidRequest begins with the path of the field at fault, `messages[0].role: ...`. Fields that
are not in the tables are refused, because a field that has no effect misleads its client; `client_habits` has
those that mislead nobody.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Literal, cast, get_args

import msgspec
import orjson

from tpx.errors import InvalidRequest
from tpx.protocol import engine_endpoints
from tpx.protocol.client_habits import plain
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
    printable,
    real,
    text_of,
    whole,
)
from tpx.protocol.json_values import JsonObject

MAX_BODY_BYTES = 4 << 20
_MAX_MESSAGES = 4096
_MAX_PROMPTS = 128
_MAX_TOOLS = 128
_MAX_STOPS = 16
_MAX_STOP_CHARACTERS = 1024
_MAX_BIASES = 1024
_INT32 = 2**31 - 1

Endpoint = Literal[
    "chat/completions",
    "completions",
    "embeddings",
    "responses",
    "messages",
    "messages/count_tokens",
    "rerank",
    "score",
]
ENDPOINTS: tuple[Endpoint, ...] = get_args(Endpoint)
OWN: frozenset[str] = frozenset(engine_endpoints.FIELDS)
"""Endpoints of which the engine makes the whole response, each event of a stream included."""


class OpenAiRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A valid request."""

    endpoint: Endpoint
    model: str
    stream: bool
    include_usage: bool
    fields: JsonObject
    """All given fields that say something."""


def decode(body: bytes, endpoint: str = "") -> OpenAiRequest:
    """Validate a request as JSON; without `endpoint`, its fields tell which it is for. Raises
    InvalidRequest.
    """
    if len(body) > MAX_BODY_BYTES:
        raise InvalidRequest(f"the request has {len(body)} bytes, more than {MAX_BODY_BYTES}")
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise InvalidRequest(f"the request is no JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise InvalidRequest("the request must be a JSON object")
    if endpoint and endpoint not in _TABLES:
        raise InvalidRequest(f"there is no endpoint '{printable(endpoint)}'")
    return validate(value, cast("Endpoint", endpoint or endpoint_of(value)))


def validate(value: JsonObject, endpoint: Endpoint) -> OpenAiRequest:
    """Validate the fields of a request. Raises InvalidRequest."""
    fields = plain(value, endpoint)
    table = _TABLES[endpoint]
    for name, given in fields.items():
        check = table.get(name)
        if check is None:
            raise FieldRefused(printable(name), f"unknown or unsupported field of /v1/{endpoint}")
        check(name, given)
    for name in ("model", *_REQUIRED[endpoint]):
        if name not in fields:
            raise FieldRefused(name, "this field is required")
    stream = bool(fields.get("stream"))
    options = cast("JsonObject", fields.get("stream_options", {}))
    if options and not stream:
        raise FieldRefused("stream_options", "only allowed with stream: true")
    if endpoint == "chat/completions" and "top_logprobs" in fields and not fields.get("logprobs"):
        raise FieldRefused("top_logprobs", "only allowed with logprobs: true")
    if "max_tokens" in fields and "max_completion_tokens" in fields:
        raise FieldRefused("max_tokens", "an older name of max_completion_tokens: give one of them")
    if "tool_choice" in fields and "tools" not in fields:
        raise FieldRefused("tool_choice", "only allowed with tools")
    return OpenAiRequest(
        endpoint=endpoint,
        model=str(fields["model"]),
        stream=stream,
        include_usage=bool(options.get("include_usage")),
        fields=fields,
    )


def endpoint_of(value: JsonObject) -> Endpoint:
    """Return the endpoint that a request is for, by the field that only that has. Raises FieldRefused."""
    for endpoint in ENDPOINTS[:3]:
        if _REQUIRED[endpoint][0] in value:
            return endpoint
    raise FieldRefused("messages", "a request has one of messages, prompt and input")


def template_values(request: OpenAiRequest) -> JsonObject:
    """Return the values for the chat template of a model, one of which may be the effort of its reasoning."""
    effort = request.fields.get("reasoning_effort")
    given = cast("JsonObject", request.fields.get("chat_template_kwargs", {}))
    return given if effort is None else {"reasoning_effort": effort, **given}


def for_templates(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """Return the messages of a chat with their reasoning where chat templates expect it."""
    return [
        {"reasoning_content" if name == "reasoning" else name: value for name, value in message.items()}
        for message in messages
    ]


def _check_stop(path: str, value: object) -> None:
    def one(path: str, text: object) -> None:
        text_of(path, text)
        if not 1 <= len(cast("str", text)) <= _MAX_STOP_CHARACTERS:
            raise FieldRefused(path, f"must have 1 to {_MAX_STOP_CHARACTERS} characters")

    if isinstance(value, str):
        one(path, value)
    else:
        check_each(path, value, _MAX_STOPS, one)


def _check_prompt(path: str, value: object) -> None:
    """Accept a text, a list of tokens, or a list of either."""
    if value in ("", []):
        raise FieldRefused(path, "must not be empty")
    token = whole(0, _INT32)
    if isinstance(value, str):
        return
    list_of(path, value)
    values = cast("list[object]", value)
    if isinstance(values[0], int):
        check_each(path, value, len(values), token)
        return

    def one(path: str, prompt: object) -> None:
        if isinstance(prompt, str) and prompt:
            return
        if not isinstance(prompt, list):
            raise FieldRefused(path, "must be a text or a list of tokens, not empty")
        check_each(path, prompt, len(prompt), token)

    check_each(path, value, _MAX_PROMPTS, one)


def _check_biases(path: str, value: object) -> None:
    object_of(path, value)
    biases = cast("JsonObject", value)
    if len(biases) > _MAX_BIASES:
        raise FieldRefused(path, f"has more than {_MAX_BIASES} members")
    for token, bias in biases.items():
        if not re.fullmatch("[0-9]{1,9}", token):
            raise FieldRefused(path, "its keys must be numbers of tokens")
        real(-100, 100)(f"{path}.{token}", bias)


def _check_messages(path: str, value: object) -> None:
    check_each(path, value, _MAX_MESSAGES, lambda path, one: check_members(path, one, _MESSAGE, ("role",)))


def _check_role(path: str, value: object) -> None:
    only("system", "developer", "user", "assistant", "tool")(path, value)


def _check_content(path: str, value: object) -> None:
    def part(path: str, one: object) -> None:
        kind = one.get("type") if isinstance(one, dict) else None
        if kind in ("input_audio", "file"):
            raise FieldRefused(f"{path}.{kind}", "only texts and images are supported")
        if kind == "image_url":
            check_members(path, one, {"type": text_of, "image_url": _check_image}, ("image_url",))
            return
        check_members(path, one, {"type": only("text"), "text": text_of}, ("type", "text"))

    if not isinstance(value, str):
        check_each(path, value, _MAX_MESSAGES, part)


def _check_image(path: str, value: object) -> None:
    table: dict[str, Check] = {"url": check_data_url, "detail": only("auto", "low", "high")}
    check_members(path, value, table, ("url",))


def _check_calls(path: str, value: object) -> None:
    function = {"name": text_of, "arguments": text_of}
    call: dict[str, Check] = {
        "id": text_of,
        "type": only("function"),
        "index": whole(0, _INT32),
        "function": lambda path, one: check_members(path, one, function, ("name", "arguments")),
    }
    check_each(path, value, _MAX_TOOLS, lambda path, one: check_members(path, one, call, ("function",)))


_MESSAGE: Mapping[str, Check] = {
    "role": _check_role,
    "content": _check_content,
    "name": text_of,
    "tool_calls": _check_calls,
    "tool_call_id": text_of,
    "reasoning_content": text_of,
    "reasoning": text_of,
}


def _check_tools(path: str, value: object) -> None:
    function = {"name": _check_name, "description": text_of, "parameters": check_schema, "strict": flag}
    tool: dict[str, Check] = {
        "type": only("function"),
        "function": lambda path, one: check_members(path, one, function, ("name",)),
    }
    check_each(
        path, value, _MAX_TOOLS, lambda path, one: check_members(path, one, tool, ("type", "function"))
    )


def _check_name(path: str, value: object) -> None:
    text_of(path, value)
    if not re.fullmatch("[a-zA-Z0-9_-]{1,64}", cast("str", value)):
        raise FieldRefused(path, "must be 1 to 64 letters, digits, _ or -")


def _check_tool_choice(path: str, value: object) -> None:
    if isinstance(value, str):
        only("none", "auto", "required")(path, value)
        return
    choice: dict[str, Check] = {
        "type": only("function"),
        "function": lambda path, one: check_members(path, one, {"name": _check_name}, ("name",)),
    }
    check_members(path, value, choice, ("type", "function"))


def _check_format(path: str, value: object) -> None:
    schema = {"name": _check_name, "description": text_of, "schema": check_schema, "strict": flag}
    table: dict[str, Check] = {
        "type": only("text", "json_object", "json_schema"),
        "json_schema": lambda path, one: check_members(path, one, schema, ("name", "schema")),
    }
    check_members(path, value, table, ("type",))
    given = cast("JsonObject", value)
    if (given["type"] == "json_schema") != (given.get("json_schema") is not None):
        raise FieldRefused(f"{path}.json_schema", "goes with type json_schema")


def _check_template_values(path: str, value: object) -> None:
    object_of(path, value)
    scalar = kind_of((str, int, float, bool), "a string, number or boolean")
    for name, given in cast("JsonObject", value).items():
        if not isinstance(given, bool):
            scalar(f"{path}.{printable(name)}", given)


_STREAM_OPTIONS: Mapping[str, Check] = {"include_usage": flag, "include_obfuscation": only(False)}
_SAMPLING: Mapping[str, Check] = {
    "model": text_of,
    "stream": flag,
    "stream_options": lambda path, value: check_members(path, value, _STREAM_OPTIONS),
    "max_tokens": whole(1, _INT32),
    "min_tokens": whole(0, _INT32),
    "ignore_eos": flag,
    "temperature": real(0, 2),
    "top_p": real(0, 1),
    "top_k": whole(-1, _INT32),
    "min_p": real(0, 1),
    "presence_penalty": real(-2, 2),
    "frequency_penalty": real(-2, 2),
    "repetition_penalty": real(0.01, 10),
    "seed": whole(-(2**63), 2**63 - 1),
    "stop": _check_stop,
    "n": whole(1, 128),
    "logit_bias": _check_biases,
    "lora_name": text_of,
}
_TABLES: Mapping[str, Mapping[str, Check]] = {
    "chat/completions": {
        **_SAMPLING,
        "messages": _check_messages,
        "max_completion_tokens": whole(1, _INT32),
        "logprobs": flag,
        "top_logprobs": whole(0, 20),
        "response_format": _check_format,
        "tools": _check_tools,
        "tool_choice": _check_tool_choice,
        "parallel_tool_calls": flag,
        "chat_template_kwargs": _check_template_values,
        "reasoning_effort": only("none", "minimal", "low", "medium", "high", "xhigh"),
        "store": only(False),
    },
    "completions": {
        **_SAMPLING,
        "prompt": _check_prompt,
        "logprobs": whole(0, 20),
        "echo": flag,
        "best_of": only(1),
    },
    "embeddings": {
        "model": text_of,
        "input": _check_prompt,
        "encoding_format": only("float", "base64"),
    },
    **engine_endpoints.FIELDS,
}
_REQUIRED: Mapping[str, tuple[str, ...]] = {
    "chat/completions": ("messages",),
    "completions": ("prompt",),
    "embeddings": ("input",),
    **engine_endpoints.REQUIRED,
}
