"""Requests from the tensors of Triton's vLLM backend."""

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass

from tpx.protocol.json_checks import FieldRefused
from tpx.protocol.json_values import JsonObject
from tpx.protocol.openai import MAX_BODY_BYTES, OpenAiRequest, validate

MOST_PIXELS = 1 << 25
"""Pixels of the images of a request: a file of some kilobytes may have any number."""
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
    "logprobs": int,
    "ignore_eos": bool,
    "stop": None,
}
"""Members of `sampling_parameters`, and the types that a string is converted to, as Triton does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRequest:
    """A prompt as tensors have it."""

    endpoint = "completions"
    prompt: str
    sampling: JsonObject
    images: Sequence[bytes]
    """Files of images."""
    wanted: frozenset[str]
    """Names of outputs besides the text."""

    def as_completion(self) -> OpenAiRequest:
        """Return it for an engine that has OpenAI's completions, and texts only. Raises FieldRefused."""
        for name in self.sampling:
            if name not in _SAMPLING or name == "logprobs":
                known = ", ".join(name for name in _SAMPLING if name != "logprobs")
                raise FieldRefused(f"sampling_parameters.{name}", f"unsupported (there are {known})")
        return validate({"model": "", "prompt": self.prompt, **self.sampling}, "completions")


def from_tensors(
    prompt: bytes, sampling: bytes, images: Sequence[bytes], wanted: frozenset[str]
) -> TextRequest:
    """Return the request of the tensors `text_input`, `sampling_parameters` and `image`.

    Raises InvalidRequest.
    """
    if len(prompt) + len(sampling) + sum(map(len, images)) > MAX_BODY_BYTES:
        raise FieldRefused("text_input", f"must have at most {MAX_BODY_BYTES} bytes, with images")
    try:
        text, given = prompt.decode(), json.loads(sampling or b"{}")
    except (ValueError, RecursionError) as exc:
        raise FieldRefused("sampling_parameters", f"must be JSON, and text_input UTF-8: {exc}") from None
    if not isinstance(given, dict):
        raise FieldRefused("sampling_parameters", "must be a JSON object")
    fields = {name: _converted(name, value) for name, value in given.items() if value is not None}
    if fields.get("n", 1) != 1:
        raise FieldRefused("sampling_parameters.n", "only 1 is supported over tensors")
    try:
        files = [base64.b64decode(image, validate=True) for image in images]
    except binascii.Error as exc:
        raise FieldRefused("image", f"must be base64: {exc}") from None
    return TextRequest(prompt=text, sampling=fields, images=files, wanted=wanted)


def _converted(name: str, value: object) -> object:
    kind = _SAMPLING.get(name)
    if not isinstance(value, str) or kind is None:
        return value
    if kind is bool:
        return {"true": True, "false": False}.get(value.lower(), value)
    try:
        return kind(value)
    except ValueError:
        return value
