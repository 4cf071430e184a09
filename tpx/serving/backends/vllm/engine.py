"""The process of an engine: vLLM, run as the `model.py` of a Python model."""

import asyncio
import json
import os
import sys
import threading
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial

from tpx.protocol.json_values import JsonObject
from tpx.protocol.openai import OpenAiRequest
from tpx.serving.backends.language.generation import Generation, LanguageModel
from tpx.serving.backends.vllm.asgi import Application, AsgiCall, VllmClient

_LOOK_EVERY_S = 0.05
_ENVIRONMENT = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
"""Variables of vLLM, unless they are set: it reports nothing to its makers."""


class VllmEngine:
    """Implements TextEngine: vLLM batches all requests by itself."""

    embeds: bool
    context: int
    _application: Application

    def __init__(self, settings: JsonObject, args: Mapping[str, str]) -> None:
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        gpus = args["model_instance_device_id"] if args["model_instance_kind"] == "GPU" else settings["gpus"]
        if gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = gpus
        self._name = args["model_name"]
        self._running: set[AsgiCall] = set()
        self._started = AsyncExitStack()  # never closed: the process ends with it
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="tpx-vllm", daemon=True).start()
        asyncio.run_coroutine_threadsafe(self._start(settings["arguments"]), self._loop).result()

    def adapt(self, asked: OpenAiRequest) -> tuple[bytes, int]:
        """Return the request as vLLM takes it, and the choices per prompt: always a stream, which can be
        cancelled.
        """
        body = {name: value for name, value in asked.fields.items() if name not in ("best_of", "store")}
        body["model"] = self._name
        if asked.endpoint != "embeddings":
            # over tensors the size of the prompt is told before the end
            usage = {"include_usage": True, "continuous_usage_stats": not asked.model}
            body |= {"stream": True, "stream_options": usage}
        return json.dumps(body).encode(), asked.fields.get("n", 1)

    def run(self, generation: Generation) -> None:
        calling = self._call(AsgiCall(generation))
        asyncio.run_coroutine_threadsafe(calling, self._loop).result()

    async def _call(self, call: AsgiCall) -> None:
        self._running.add(call)
        try:
            await self._application(call.scope, call.receive, call.send)
        finally:
            self._running.discard(call)

    async def _start(self, arguments: JsonObject) -> None:
        from tpx.serving.backends.vllm.application import started_vllm

        vllm = await self._started.enter_async_context(started_vllm(arguments, self._name))
        self.embeds, self.context, self._application = vllm.embeds, vllm.context, vllm.application
        self._watching = asyncio.create_task(self._watch(vllm.client))

    async def _watch(self, client: VllmClient) -> None:
        """Notice clients that have left, and the end of vLLM's own processes."""
        while not client.errored:
            await asyncio.sleep(_LOOK_EVERY_S)
            for call in self._running:
                call.look()
        sys.stderr.write("vLLM's engine has ended\n")
        sys.stderr.flush()
        os._exit(1)  # the server fails its requests, and starts it again


TritonPythonModel = partial(LanguageModel, VllmEngine)
"""The model as the worker runs it."""
