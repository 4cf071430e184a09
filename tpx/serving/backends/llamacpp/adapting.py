"""Requests as llama.cpp takes them."""

import json

from tpx.protocol.json_checks import FieldRefused
from tpx.protocol.json_values import JsonObject
from tpx.protocol.openai import OpenAiRequest, refuse_images

_SEED = 2**31 - 1
"""llama.cpp's seeds have 32 bits, and the largest means a random one."""
_DEFAULT_MAX_TOKENS = 16
"""OpenAI's for completions, and vLLM's."""
_WITHOUT_EFFECT = frozenset({"model", "user", "stream_options", "store", "best_of"})


def adapt(request: OpenAiRequest, *, tools: bool, parallel: int) -> bytes:
    """Return a request as llama.cpp takes it; always as a stream, whose callback can cancel it.

    Raises FieldRefused. `tools` is True if the chat template supports them.
    """
    fields = {name: value for name, value in request.fields.items() if name not in _WITHOUT_EFFECT}
    if request.endpoint in ("embeddings", "rerank"):
        return json.dumps(fields).encode()
    refuse_images(request)
    if fields.pop("min_tokens", 0):
        raise FieldRefused("min_tokens", "llama.cpp has no such setting (ignore_eos goes on to max_tokens)")
    for name in ("echo", "lora_name"):
        if fields.pop(name, False):
            raise FieldRefused(name, "llama.cpp has no such setting")
    if fields.get("n", 1) > parallel:
        raise FieldRefused("n", f"the model has {parallel} sequences in parallel, its parameter n_parallel")
    _rename(fields)
    if request.endpoint == "completions":
        fields.setdefault("max_tokens", _DEFAULT_MAX_TOKENS)
        if "logprobs" in fields:
            fields["logprobs"] = max(1, fields["logprobs"])
    else:
        _adapt_chat(fields, tools=tools)
    return json.dumps({**fields, "stream": True, "return_progress": True}).encode()


def _rename(fields: JsonObject) -> None:
    """Replace fields that llama.cpp has under other names or with other values."""
    if "repetition_penalty" in fields:
        fields |= {"repeat_penalty": fields.pop("repetition_penalty"), "repeat_last_n": -1}
    if fields.get("top_k") == -1:
        fields["top_k"] = 0
    if "seed" in fields:
        fields["seed"] %= _SEED
    if isinstance(fields.get("stop"), str):
        fields["stop"] = [fields["stop"]]


def _adapt_chat(fields: JsonObject, *, tools: bool) -> None:
    if "max_completion_tokens" in fields:
        fields["max_tokens"] = fields.pop("max_completion_tokens")
    if "tools" not in fields:
        return
    if not tools:
        raise FieldRefused("tools", "the chat template of the model has no tools")
    choice = fields.get("tool_choice")
    if isinstance(choice, dict):  # llama.cpp takes no name: it must call the only tool
        name = choice["function"]["name"]
        fields["tools"] = [tool for tool in fields["tools"] if tool["function"]["name"] == name]
        if not fields["tools"]:
            raise FieldRefused("tool_choice.function.name", f"there is no tool '{name}' in tools")
        fields["tool_choice"] = "required"
