"""Completions of models with the tensors of Triton's vLLM backend, in the form of OpenAI's API."""

import math
import os
from collections.abc import Mapping
from datetime import UTC, datetime

import orjson

from tpx.errors import InvalidRequest
from tpx.protocol.json_checks import FieldRefused
from tpx.protocol.json_values import JsonObject
from tpx.protocol.openai import OWN, OpenAiRequest
from tpx.protocol.tensors import Tensor, decode_bytes, encode_bytes
from tpx.serving.request import TensorSpec
from tpx.serving.signature import Signature

_WITHOUT_EFFECT = frozenset({"model", "prompt", "stream", "stream_options", "echo"})
"""Fields that are no sampling parameters; some of them have one possible value only."""


def single_tensor(signature: Signature, spec: TensorSpec, data: bytes) -> Tensor:
    """Return a tensor of one element."""
    shape = [1] * (len(spec.dims) + (signature.max_batch_size > 0))
    return Tensor(spec.name, spec.datatype, shape, data)


class ComposedTexts:
    """Completions of a model with the tensors of Triton's vLLM backend."""

    def __init__(self, asked: OpenAiRequest, signature: Signature) -> None:
        """Raises InvalidRequest for fields that the model has no tensor for."""
        if asked.endpoint in OWN:
            raise InvalidRequest(f"model '{asked.model}' does not serve /v1/{asked.endpoint}")
        if asked.endpoint != "completions":
            name = "messages" if asked.endpoint == "chat/completions" else "input"
            raise FieldRefused(name, f"model '{asked.model}' has no chat template: use /v1/completions")
        if not isinstance(asked.fields["prompt"], str):
            raise FieldRefused("prompt", f"model '{asked.model}' takes one text")
        self._echo = bool(asked.fields.get("echo"))
        if self._echo and "exclude_input_in_output" not in signature.inputs:
            raise FieldRefused("echo", f"model '{asked.model}' has no input exclude_input_in_output")
        sampling = {name: value for name, value in asked.fields.items() if name not in _WITHOUT_EFFECT}
        for name in ("logprobs", "n"):
            if sampling.get(name, 1) != 1 or (name == "logprobs" and name in sampling):
                raise FieldRefused(name, f"not supported by model '{asked.model}'")
        if sampling and "sampling_parameters" not in signature.inputs:
            raise FieldRefused(
                next(iter(sampling)), f"model '{asked.model}' has no input sampling_parameters"
            )
        if asked.include_usage and not {"num_input_tokens", "num_output_tokens"} <= signature.outputs.keys():
            raise FieldRefused("stream_options", f"model '{asked.model}' does not count tokens")
        self._asked = asked
        self._signature = signature
        self._sampling = sampling
        self._base: JsonObject = {
            "id": f"cmpl-{os.urandom(12).hex()}",
            "object": "text_completion",
            "created": int(datetime.now(UTC).timestamp()),
            "model": asked.model,
        }
        self._text: list[str] = []
        self._reason: str | None = None
        self._prompt_tokens = self._tokens = -1

    def inputs(self) -> list[Tensor]:
        values: Mapping[str, bytes] = {
            "text_input": encode_bytes([str(self._asked.fields["prompt"]).encode()]),
            "sampling_parameters": encode_bytes([orjson.dumps(self._sampling)]),
            "stream": bytes([self._asked.stream]),
            "exclude_input_in_output": bytes([not self._echo]),
            "return_finish_reason": b"\1",
            "return_num_input_tokens": b"\1",
            "return_num_output_tokens": b"\1",
        }
        specs = self._signature.inputs
        return [
            single_tensor(self._signature, specs[name], data)
            for name, data in values.items()
            if name in specs
        ]

    def piece(self, outputs: list[Tensor]) -> bytes:
        text = self._read(outputs)
        return self._dump([{"index": 0, "text": text, "logprobs": None, "finish_reason": self._reason}])

    def rest(self) -> bytes:
        parts = []
        if self._reason is None:
            parts.append(self._dump([{"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}]))
        if self._asked.include_usage:
            parts.append(self._dump([], usage=self._usage()))
        return b"\n\ndata: ".join(parts)

    def whole(self, outputs: list[Tensor]) -> None:
        self._text.append(self._read(outputs))

    def joined(self) -> bytes:
        choice = {
            "index": 0,
            "text": "".join(self._text),
            "logprobs": None,
            "finish_reason": self._reason or "stop",
        }
        return self._dump([choice], usage=self._usage()) if self._tokens >= 0 else self._dump([choice])

    def _read(self, outputs: list[Tensor]) -> str:
        values = {tensor.name: tensor for tensor in outputs}
        for name in ("num_input_tokens", "num_output_tokens"):
            if name in values and (array := values[name].numpy()).size:
                count = int(array.reshape(-1)[0])
                if name == "num_input_tokens":
                    self._prompt_tokens = count
                else:
                    self._tokens = max(0, self._tokens) + count
        reason = _first(values.get("finish_reason"))
        self._reason = reason if reason not in ("", "None") else None
        return _first(values.get("text_output"))

    def _usage(self) -> JsonObject:
        prompt, tokens = max(0, self._prompt_tokens), max(0, self._tokens)
        return {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}

    def _dump(self, choices: list[JsonObject], **more: JsonObject) -> bytes:
        return orjson.dumps({**self._base, "choices": choices, **more})


def _first(tensor: Tensor | None) -> str:
    """Return the first string of a tensor."""
    if tensor is None or not len(tensor.data):
        return ""
    return decode_bytes(tensor.data, math.prod(tensor.shape))[0].decode(errors="replace")
