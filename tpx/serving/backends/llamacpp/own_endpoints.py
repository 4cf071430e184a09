"""Requests for responses (OpenAI) and messages (Anthropic) as llama.cpp takes them: what it would pass over
is translated, or refused by name.
"""

import json

from tpx.protocol.json_checks import FieldRefused
from tpx.protocol.json_values import JsonObject
from tpx.protocol.openai import OpenAiRequest
from tpx.serving.backends.llamacpp.renaming import rename


def adapt_own(request: OpenAiRequest, context: int) -> bytes:
    """Return the request as llama.cpp takes it, with `context` tokens a sequence. Raises FieldRefused."""
    fields = dict(request.fields)
    if request.endpoint == "responses":
        _adapt_response(fields)
        rename(fields, context)
    elif request.endpoint in ("messages", "messages/count_tokens"):
        _check_message(fields)
    return json.dumps(fields).encode()


def _adapt_response(fields: JsonObject) -> None:
    if "top_logprobs" in fields:
        raise FieldRefused("top_logprobs", "llama.cpp has no such setting for responses")
    if fields.pop("include", []) not in ([], ["reasoning.encrypted_content"]):  # reasoning is never encrypted
        raise FieldRefused("include", 'only ["reasoning.encrypted_content"] is supported by llama.cpp')
    if isinstance(fields["input"], list):  # clients send reasoning back without its text, which is encrypted
        fields["input"] = [
            item for item in fields["input"] if item.get("type") != "reasoning" or item.get("content")
        ]
    form = fields.pop("text", {}).get("format")
    if isinstance(form, dict):
        kind = form.get("type")
        fields["response_format"] = {"type": kind, "json_schema": form} if kind == "json_schema" else form
    reasoning = fields.get("reasoning")
    effort = reasoning.get("effort") if isinstance(reasoning, dict) else None
    if effort is not None:
        fields["chat_template_kwargs"] = {
            "reasoning_effort": effort,
            **fields.get("chat_template_kwargs", {}),
        }


def _check_message(fields: JsonObject) -> None:
    if fields.get("output_config", {}).get("format") is not None:
        raise FieldRefused("output_config.format", "llama.cpp has no such setting for messages")
    if "chat_template_kwargs" in fields:
        raise FieldRefused("chat_template_kwargs", "llama.cpp has no such setting for messages")
