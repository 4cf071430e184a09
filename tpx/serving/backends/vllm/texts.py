"""Requests over the tensors of Triton's vLLM backend, on vLLM's engine itself (vllm_backend/src/utils)."""

import io
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from tpx.protocol.json_checks import FieldRefused, check_schema, object_of
from tpx.protocol.json_values import JsonObject
from tpx.serving.backends.language.tensors import MOST_PIXELS, TextRequest

_ONLY_OURS = ("output_kind", "detokenize")


class TokenLogprob(Protocol):
    """The log probability of a token that was possible."""

    logprob: float
    rank: int | None
    decoded_token: str | None


class VllmChoice(Protocol):
    """Tokens that a step has added to a text."""

    text: str
    token_ids: Sequence[int]
    finish_reason: str | None
    cumulative_logprob: float | None
    logprobs: Sequence[Mapping[int, TokenLogprob]] | None


class VllmOutput(Protocol):
    """A step of a request."""

    prompt_token_ids: Sequence[int]
    num_cached_tokens: int | None
    outputs: Sequence[VllmChoice]
    finished: bool


class VllmRenderer(Protocol):
    """Tokenizes prompts."""

    async def render_cmpl_async(self, prompts: Sequence[JsonObject]) -> Sequence[object]: ...


class VllmClient(Protocol):
    """Members of vLLM's client of its engine, which has processes of its own."""

    renderer: VllmRenderer

    @property
    def errored(self) -> bool:
        """True once the engine has ended."""

    def generate(
        self, prompt: object, sampling_params: object, request_id: str, *, lora_request: object
    ) -> AsyncGenerator[VllmOutput, None]:
        """Compute a prompt that was rendered; closing the generator cancels it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmText:
    """A request as the engine takes it."""

    text: str
    images: Sequence[bytes]
    sampling: object
    """vLLM's SamplingParams."""
    lora: str
    """Name of an adapter, or nothing."""
    logprobs: bool
    """True if the log probabilities of tokens are an output."""

    def prompt(self) -> JsonObject:
        """Return what is rendered. Raises ValueError for a file that is no image."""
        images = [_open_image(each) for each in self.images]
        return {"prompt": self.text, **({"multi_modal_data": {"image": images}} if images else {})}


def text_for_vllm(asked: TextRequest) -> VllmText:
    """Translate a request. Raises FieldRefused."""
    from vllm.exceptions import VLLMClientError
    from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

    given = dict(asked.sampling)
    lora = given.pop("lora_name", "")
    if not isinstance(lora, str):
        raise FieldRefused("sampling_parameters.lora_name", "must be a string")
    for name in given:
        if name in _ONLY_OURS or name.startswith("_"):
            raise FieldRefused(f"sampling_parameters.{name}", "not supported")
    guided = _structured(given)
    logprobs = "logprobs" in given
    if "cumulative_logprob" in asked.wanted:
        given.setdefault("logprobs", 0)
    try:
        if guided is not None:
            given["structured_outputs"] = StructuredOutputsParams(**guided)
        sampling = SamplingParams(**given, output_kind=RequestOutputKind.DELTA)
    except (TypeError, ValueError, VLLMClientError) as exc:  # no such parameter, or a wrong value
        raise FieldRefused("sampling_parameters", str(exc)) from exc
    return VllmText(text=asked.prompt, images=asked.images, sampling=sampling, lora=lora, logprobs=logprobs)


def _structured(given: JsonObject) -> JsonObject | None:
    """Remove and return what the text must be: by its new name, or by the one that vLLM had earlier."""
    for name in ("structured_outputs", "guided_decoding"):
        value = given.pop(name, None)
        if value is None:
            continue
        path = f"sampling_parameters.{name}"
        guided = _object_of(path, value)
        if guided.get("json") is not None:
            guided["json"] = _object_of(f"{path}.json", guided["json"])
            check_schema(f"{path}.json", guided["json"])
        return guided
    return None


def _object_of(path: str, value: object) -> JsonObject:
    """Return an object, which may be a text, as Triton's clients send it."""
    try:
        value = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as exc:
        raise FieldRefused(path, f"must be JSON: {exc}") from None
    object_of(path, value)
    return cast("JsonObject", value)


def _open_image(data: bytes) -> object:
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(io.BytesIO(data))
        if image.width * image.height > MOST_PIXELS:
            raise ValueError(f"image: has more than {MOST_PIXELS} pixels")
        return image.convert("RGB")
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as exc:
        raise ValueError(f"image: is no image: {exc}") from exc


def chunk_of(output: VllmOutput, made: int, *, logprobs: bool) -> bytes:
    """Return what a step has added as a view takes it; `made` tokens were made until its end."""
    choice = output.outputs[0]
    found: JsonObject = {
        "index": 0,
        "text": choice.text,
        "finish_reason": choice.finish_reason,
        "cumulative_logprob": choice.cumulative_logprob or 0.0,
    }
    if logprobs and choice.logprobs is not None:
        found["logprobs"] = [
            {
                token: {"logprob": each.logprob, "rank": each.rank, "decoded_token": each.decoded_token}
                for token, each in possible.items()
            }
            for possible in choice.logprobs
        ]
    chunk: JsonObject = {"choices": [found], "tokens": len(choice.token_ids)}
    if choice.finish_reason is not None:
        cached = output.num_cached_tokens or 0
        prompt = len(output.prompt_token_ids)
        chunk["timings"] = {"prompt_n": prompt - cached, "cache_n": cached, "predicted_n": made}
    return json.dumps(chunk, separators=(",", ":")).encode()
