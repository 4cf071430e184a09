"""The process of an engine: llama.cpp's server as a library, run as the `model.py` of a Python model."""

import json
from collections.abc import Mapping
from functools import partial
from typing import cast

from tpx.protocol.json_values import JsonObject
from tpx.protocol.openai import OWN, OpenAiRequest
from tpx.serving.backends.language.generation import Generation, LanguageModel
from tpx.serving.backends.language.tensors import TextRequest
from tpx.serving.backends.llamacpp.adapting import adapt
from tpx.serving.backends.llamacpp.engine_socket import LlamaCppAnswer
from tpx.serving.backends.llamacpp.llama_server import start_server

_PROGRESS = b'"prompt_progress":{'


class LlamaCppEngine:
    """Implements ThreadedEngine: llama.cpp batches the sequences of all threads by itself."""

    def __init__(self, settings: JsonObject, args: Mapping[str, str]) -> None:
        self.endpoints = _endpoints(settings)
        self.context: int = settings["n_ctx"]
        self._parallel: int = settings["n_parallel"]
        self._sees = bool(settings["mmproj"])
        self._server, self._socket = start_server(settings, args["model_name"])
        self._supports_tools = self._socket.supports_tools()

    def adapt(self, asked: OpenAiRequest | TextRequest) -> bytes:
        asked = asked.as_completion() if isinstance(asked, TextRequest) else asked
        context = self.context // self._parallel
        return adapt(
            asked, tools=self._supports_tools, sees=self._sees, parallel=self._parallel, context=context
        )

    def run(self, generation: Generation) -> None:
        def take(data: bytes) -> bool:
            if _PROGRESS in data:
                generation.note_prompt(json.loads(data)["prompt_progress"]["total"])
                return generation.take(b"")
            if data == b"null" or _refused(generation, data):
                return generation.take(b"")
            return generation.take(data)

        body = cast("bytes", generation.body)
        if generation.endpoint in ("embeddings", "rerank"):
            reranks = generation.endpoint == "rerank"
            compute = self._server.handle_rerank if reranks else self._server.handle_embeddings
            answer = compute(body)
            if not _refused(generation, answer):
                generation.take(answer, token=False)
        elif generation.endpoint in OWN:
            self._socket.call(generation, body)
        elif generation.endpoint == "completions":
            self._server.handle_completions(body, take)
        else:
            self._server.handle_chat_completions(body, take)


def _endpoints(settings: JsonObject) -> frozenset[str]:
    if settings["embeddings"]:
        return frozenset({"rerank" if settings["pooling"] == "rank" else "embeddings"})
    return frozenset({"chat/completions", "completions", "responses", "messages", "messages/count_tokens"})


def _refused(generation: Generation, data: bytes) -> bool:
    """Return whether an answer is an error of llama.cpp, and note it."""
    if not data.startswith(b'{"error"'):
        return False
    LlamaCppAnswer(generation, lambda: None).refuse(json.loads(data))
    return True


TritonPythonModel = partial(LanguageModel, LlamaCppEngine)
"""The model as the worker runs it."""
