"""Requests from the tensors of Triton's vLLM backend."""

import json

from tpx.protocol.json_checks import FieldRefused
from tpx.protocol.json_values import JsonObject
from tpx.protocol.openai import MAX_BODY_BYTES, OpenAiRequest, validate

_SAMPLING = {
    "max_tokens": int,
    "min_tokens": int,
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "presence_penalty": float,
    "frequency_penalty": float,
    "repetition_penalty": float,
    "seed": int,
    "n": int,
    "ignore_eos": bool,
    "stop": None,
}
"""Members of `sampling_parameters`, and the types that a string is converted to, as Triton does."""


def from_tensors(prompt: bytes, sampling: bytes) -> OpenAiRequest:
    """Return the request of the tensors `text_input` and `sampling_parameters`. Raises InvalidRequest."""
    if len(prompt) + len(sampling) > MAX_BODY_BYTES:
        raise FieldRefused("text_input", f"must have at most {MAX_BODY_BYTES} bytes")
    try:
        text, given = prompt.decode(), json.loads(sampling or b"{}")
    except (ValueError, RecursionError) as exc:
        raise FieldRefused("sampling_parameters", f"must be JSON, and text_input UTF-8: {exc}") from None
    if not isinstance(given, dict):
        raise FieldRefused("sampling_parameters", "must be a JSON object")
    fields: JsonObject = {"model": "", "prompt": text}
    for name, value in given.items():
        if name not in _SAMPLING:
            raise FieldRefused(
                f"sampling_parameters.{name}", f"unsupported (there are {', '.join(_SAMPLING)})"
            )
        fields[name] = _converted(name, value)
    if fields.get("n", 1) != 1:
        raise FieldRefused("sampling_parameters.n", "only 1 is supported over tensors")
    return validate(fields, "completions")


def _converted(name: str, value: object) -> object:
    kind = _SAMPLING[name]
    if not isinstance(value, str) or kind is None:
        return value
    if kind is bool:
        return {"true": True, "false": False}.get(value.lower(), value)
    try:
        return kind(value)
    except ValueError:
        return value
