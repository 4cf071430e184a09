"""Requests as OpenVINO GenAI takes them: a prompt, and fields of its GenerationConfig."""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from tpx.protocol.json_checks import FieldRefused
from tpx.protocol.json_values import JsonObject
from tpx.protocol.openai import OpenAiRequest, for_templates, template_values

_DEFAULT_MAX_TOKENS = 16
"""OpenAI's for completions, and vLLM's."""
_NAMES = {
    "max_completion_tokens": "max_new_tokens",
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "ignore_eos": "ignore_eos",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repetition_penalty",
    "seed": "rng_seed",
}
_ELSEWHERE = frozenset(
    {
        "chat_template_kwargs",
        "echo",
        "messages",
        "model",
        "prompt",
        "reasoning_effort",
        "response_format",
        "stop",
        "stream",
        "stream_options",
    }
)
"""Fields that are no member of GenerationConfig, or need more than another name."""
_ONLY = {"n": 1, "logprobs": False, "parallel_tool_calls": True}
"""Values that change nothing, of fields that the engine has not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """A request: its prompt and settings."""

    chat: bool
    prompt: str | Sequence[int] | Sequence[JsonObject]
    """A text, tokens, or the messages of a chat."""
    stops: Sequence[str]
    echo: bool
    settings: JsonObject
    """Members of GenerationConfig."""
    schema: str
    """A JSON schema that the text obeys; empty for none."""
    template_values: JsonObject


def adapt(asked: OpenAiRequest) -> Generated:
    """Translate a request. Raises FieldRefused."""
    settings: JsonObject = {}
    chat = asked.endpoint == "chat/completions"
    for name, value in asked.fields.items():
        if name in _NAMES:
            settings[_NAMES[name]] = value
        elif name in _ONLY:
            if value is not _ONLY[name] and value != _ONLY[name]:
                raise FieldRefused(name, "OpenVINO GenAI has no such setting")
        elif name not in _ELSEWHERE:
            raise FieldRefused(name, "OpenVINO GenAI has no such setting")
    if not chat:
        settings.setdefault("max_new_tokens", _DEFAULT_MAX_TOKENS)
    _adapt_sampling(settings)
    stop = asked.fields.get("stop", ())
    return Generated(
        chat=chat,
        prompt=_messages(asked.fields["messages"]) if chat else _prompt(asked.fields["prompt"]),
        stops=(stop,) if isinstance(stop, str) else tuple(stop),
        echo=bool(asked.fields.get("echo")),
        settings=settings,
        schema=_schema(asked.fields.get("response_format", {})),
        template_values=template_values(asked),
    )


def _adapt_sampling(settings: JsonObject) -> None:
    settings["do_sample"] = settings.get("temperature") != 0
    if not settings["do_sample"]:
        for name in ("temperature", "top_p", "top_k", "min_p"):
            settings.pop(name, None)
    if settings.get("top_k", 1) < 1:
        settings["top_k"] = 2**63 - 1
    if settings.get("top_p") == 0:  # the most probable token alone; the engine takes no 0
        settings |= {"top_p": 1.0, "top_k": 1}
    # the engine's own default is the same for all requests
    settings["rng_seed"] = settings.get("rng_seed", secrets.randbits(63)) % 2**63


def _prompt(value: object) -> str | Sequence[int]:
    if isinstance(value, str):
        return value
    assert isinstance(value, list)
    if isinstance(value[0], int):
        return value
    if len(value) > 1:
        raise FieldRefused("prompt", "OpenVINO GenAI takes one prompt")
    return _prompt(value[0])


def _messages(messages: Sequence[JsonObject]) -> Sequence[JsonObject]:
    """Return messages whose content is one text, as templates expect it."""
    plain = []
    for index, message in enumerate(for_templates(messages)):
        if message.get("tool_calls") or message["role"] == "tool":
            raise FieldRefused(
                f"messages[{index}].role", "calls of tools are not supported by OpenVINO GenAI"
            )
        content = message.get("content") or ""
        if not isinstance(content, str):
            for place, part in enumerate(content):
                if part["type"] != "text":
                    raise FieldRefused(f"messages[{index}].content[{place}].type", "only text is supported")
            content = "".join(part["text"] for part in content)
        plain.append({**message, "content": content})
    return plain


def _schema(form: JsonObject) -> str:
    if form.get("type") == "json_schema":
        return json.dumps(form["json_schema"]["schema"])
    return '{"type":"object"}' if form.get("type") == "json_object" else ""
