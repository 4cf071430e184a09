"""The process of an engine: OpenVINO GenAI's pipeline, run as the `model.py` of a Python model.

A step advances all sequences by a token. It holds the interpreter lock.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Protocol, cast

import numpy as np

import tpx.serving.backends.openvino  # noqa: F401 (before OpenVINO: then it reports nothing)

# isort: split
import openvino
import openvino_genai

from tpx.protocol.json_checks import FieldRefused
from tpx.protocol.json_values import JsonObject
from tpx.protocol.openai import OpenAiRequest
from tpx.serving.backends.language.generation import Generation, LanguageModel
from tpx.serving.backends.language.tensors import TextRequest
from tpx.serving.backends.openvino_genai.adapting import Generated, adapt
from tpx.serving.backends.openvino_genai.texts import TextStream, TokenTexts
from tpx.serving.backends.python.worker.errors import ErrorCode

_BLOCK = 32
"""Tokens of a block of the cache on a CPU."""


class PipelineOutput(Protocol):
    """New tokens of a sequence."""

    generated_ids: Sequence[int]
    finish_reason: object


class PipelineHandle(Protocol):
    """Methods of the pipeline's requests."""

    def can_read(self) -> bool: ...
    def read(self) -> Mapping[int, PipelineOutput]:
        """Return the output of each sequence since the last call."""

    def get_status(self) -> object: ...
    def cancel(self) -> None: ...


class OpenVinoGenAiEngine:
    """Implements SteppedEngine."""

    endpoints = frozenset({"chat/completions", "completions"})

    def __init__(self, settings: JsonObject, args: Mapping[str, str]) -> None:
        self._name = args["model_name"]
        self.context: int = settings["n_ctx"]
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_seqs = settings["n_parallel"]
        scheduler.max_num_batched_tokens = settings["n_batch"]
        scheduler.cache_size = 0
        # one block more: a sequence that fills the cache is cut off before its last tokens
        scheduler.num_kv_blocks = -(-self.context // _BLOCK) + 1
        scheduler.enable_prefix_caching = True
        device = settings["device"]
        properties = {"INFERENCE_NUM_THREADS": settings["threads"]} if device == "CPU" else {}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            settings["path"], scheduler, device, properties
        )
        self._tokenizer = self._pipeline.get_tokenizer()
        if settings["chat_template"]:
            self._tokenizer.set_chat_template(settings["chat_template"])
        size = max(self._tokenizer.get_vocab().values()) + 1
        self._texts = TokenTexts(self._tokenizer.decode, self._encode("a", special=False), size)
        self._running: dict[int, _PipelineSequence] = {}
        self._numbers = count(1)

    def adapt(self, asked: OpenAiRequest | TextRequest) -> Generated:
        asked = asked.as_completion() if isinstance(asked, TextRequest) else asked
        if asked.endpoint == "chat/completions" and not self._tokenizer.chat_template:
            raise FieldRefused("messages", "the model has no chat template: use /v1/completions")
        return adapt(asked)

    def submit(self, generation: Generation) -> None:
        wanted = cast("Generated", generation.body)
        tokens = self._tokens(wanted)
        generation.note_prompt(len(tokens))
        room = self.context - len(tokens)
        if room < 1:
            what = "messages" if wanted.chat else "prompt"
            raise ValueError(f"{what}: has {len(tokens)} tokens, and the model's context {self.context}")
        config = self._pipeline.get_config()
        for name, value in wanted.settings.items():
            setattr(config, name, value)
        config.max_new_tokens = min(wanted.settings.get("max_new_tokens", room), room)
        if wanted.schema:
            config.structured_output_config = openvino_genai.StructuredOutputConfig(json_schema=wanted.schema)
        config.validate()
        sequence = _PipelineSequence(
            generation, self._name, TextStream(self._texts, wanted.stops), len(tokens)
        )
        if wanted.echo:
            sequence.prefix = (
                wanted.prompt if isinstance(wanted.prompt, str) else self._tokenizer.decode(tokens)
            )
        number = next(self._numbers)
        sequence.handle = self._pipeline.add_request(
            number, openvino.Tensor(np.array([tokens], np.int64)), config
        )
        self._running[number] = sequence

    def step(self) -> Sequence[Generation]:
        try:
            self._pipeline.step()
        except RuntimeError as exc:  # of the pipeline: no request can go on
            for sequence in self._running.values():
                sequence.generation.refuse(str(exc), ErrorCode.INTERNAL)
            ended = list(self._running)
        else:
            ended = [number for number, sequence in self._running.items() if sequence.read()]
        return [self._running.pop(number).generation for number in ended]

    def _tokens(self, wanted: Generated) -> list[int]:
        if isinstance(wanted.prompt, str):
            return self._encode(wanted.prompt, special=True)
        if not wanted.chat:
            return list(cast("Sequence[int]", wanted.prompt))
        try:
            text = self._tokenizer.apply_chat_template(
                wanted.prompt, True, extra_context=dict(wanted.template_values)
            )
        except RuntimeError as exc:
            raise ValueError(f"messages: the chat template fails: {exc}") from exc
        return self._encode(text, special=False)

    def _encode(self, text: str, *, special: bool) -> list[int]:
        encoded = self._tokenizer.encode(text, add_special_tokens=special)
        return [int(token) for token in encoded.input_ids.data[0]]


class _PipelineSequence:
    """A request in the pipeline, and its chunks."""

    handle: PipelineHandle

    def __init__(self, generation: Generation, model: str, text: TextStream, prompt_tokens: int) -> None:
        self.prefix = ""
        """The prompt, if the text begins with it."""
        self.generation = generation
        self._text = text
        self._prompt_tokens = prompt_tokens
        self._made = 0
        chat = generation.endpoint == "chat/completions"
        self._key = "delta" if chat else "text"
        head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(12)}",
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": int(datetime.now(UTC).timestamp()),
            "model": model,
        }
        self._head = json.dumps(head, separators=(",", ":"))[:-1]
        self._role: JsonObject = {"role": "assistant"} if chat else {}

    def read(self) -> bool:
        """Send what a step has made. Return True at the end, which may be an error."""
        try:
            return self._read()
        except RuntimeError as exc:  # of the tokenizer: the other sequences go on
            self.generation.refuse(str(exc), ErrorCode.INTERNAL)
            self.handle.cancel()
            return True

    def _read(self) -> bool:
        reason = ""
        pieces = ""
        while self.handle.can_read():
            for output in self.handle.read().values():
                self._made += len(output.generated_ids)
                pieces += self._text.add(output.generated_ids)
                if output.finish_reason == openvino_genai.GenerationFinishReason.STOP:
                    reason = "stop"
                elif output.finish_reason == openvino_genai.GenerationFinishReason.LENGTH:
                    reason = "length"
        if not reason and self.handle.get_status() != openvino_genai.GenerationStatus.RUNNING:
            reason = "length"  # the cache is full
        if self._text.stopped:
            reason = "stop"
        elif reason:
            pieces += self._text.end()
        gone = self.generation.take(self._chunk(pieces) if pieces else b"")
        if reason and not gone:
            self.generation.take(self._last(reason))
        if (gone or reason) and self.handle.get_status() == openvino_genai.GenerationStatus.RUNNING:
            self.handle.cancel()
        return bool(gone or reason)

    def _chunk(self, piece: str) -> bytes:
        """Return a chunk; built as text, because there is one per token."""
        text = json.dumps(self.prefix + piece)
        self.prefix = ""
        if self._key == "text":
            choice = f'"text":{text}'
        else:
            role = '"role":"assistant",' if self._role else ""
            self._role = {}
            choice = f'"delta":{{{role}"content":{text}}}'
        return (
            f'{self._head},"choices":[{{"index":0,{choice},"logprobs":null,"finish_reason":null}}]}}'
        ).encode()

    def _last(self, reason: str) -> bytes:
        """Return the chunk with the reason of the end and the numbers of tokens."""
        end = {"text": self.prefix} if self._key == "text" else {"delta": self._role}
        choice = {"index": 0, **end, "logprobs": None, "finish_reason": reason}
        timings = {"prompt_n": self._prompt_tokens, "cache_n": 0, "predicted_n": self._made}
        rest = json.dumps({"choices": [choice], "timings": timings}, separators=(",", ":"))
        return f"{self._head},{rest[1:]}".encode()


TritonPythonModel = partial(LanguageModel, OpenVinoGenAiEngine)
"""The model as the worker runs it."""
