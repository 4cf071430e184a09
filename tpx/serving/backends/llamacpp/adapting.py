"""Requests as llama.cpp takes them."""

import json

from tpx.protocol.json_checks import FieldRefused
from tpx.protocol.json_values import JsonObject
from tpx.protocol.openai import OWN, OpenAiRequest, for_templates, template_values
from tpx.serving.backends.llamacpp.own_endpoints import adapt_own
from tpx.serving.backends.llamacpp.parts import check_parts
from tpx.serving.backends.llamacpp.renaming import rename

_DEFAULT_MAX_TOKENS = 16
"""OpenAI's for completions, and vLLM's."""
_ELSEWHERE = frozenset({"model", "stream_options", "reasoning_effort", "chat_template_kwargs"})


def adapt(request: OpenAiRequest, *, tools: bool, sees: bool, parallel: int, context: int) -> bytes:
    """Return a request as llama.cpp takes it; always as a stream, whose callback can cancel it.

    Raises FieldRefused. `tools` is True if the chat template supports them, `sees` if the model takes images;
    each of `parallel` sequences has at most `context` tokens.
    """
    if "tools" in request.fields and not tools:
        raise FieldRefused("tools", "the chat template of the model has no tools")
    check_parts(request, sees=sees)
    if request.endpoint in OWN:
        return adapt_own(request, context)
    fields = {name: value for name, value in request.fields.items() if name not in _ELSEWHERE}
    if request.endpoint == "embeddings":
        return json.dumps(fields).encode()
    _refuse_missing(fields, parallel)
    rename(fields, context)
    if request.endpoint == "completions":
        fields.setdefault("max_tokens", _DEFAULT_MAX_TOKENS)
        if "logprobs" in fields:
            fields["logprobs"] = max(1, fields["logprobs"])
    else:
        _adapt_chat(fields)
        if values := template_values(request):
            fields["chat_template_kwargs"] = values
    return json.dumps({**fields, "stream": True, "return_progress": True}).encode()


def _refuse_missing(fields: JsonObject, parallel: int) -> None:
    """Remove settings that llama.cpp has not. Raises FieldRefused for values that say something."""
    if fields.pop("min_tokens", 0):
        raise FieldRefused("min_tokens", "llama.cpp has no such setting (ignore_eos goes on to max_tokens)")
    for name in ("echo", "lora_name"):
        if fields.pop(name, False):
            raise FieldRefused(name, "llama.cpp has no such setting")
    if fields.get("n", 1) > parallel:
        raise FieldRefused("n", f"the model has {parallel} sequences in parallel, its parameter n_parallel")


def _adapt_chat(fields: JsonObject) -> None:
    if "max_completion_tokens" in fields:
        fields["max_tokens"] = fields.pop("max_completion_tokens")
    fields["messages"] = for_templates(fields["messages"])
    choice = fields.get("tool_choice")
    if isinstance(choice, dict):  # llama.cpp takes no name: it must call the only tool
        name = choice["function"]["name"]
        fields["tools"] = [tool for tool in fields["tools"] if tool["function"]["name"] == name]
        if not fields["tools"]:
            raise FieldRefused("tool_choice.function.name", f"there is no tool '{name}' in tools")
        fields["tool_choice"] = "required"
