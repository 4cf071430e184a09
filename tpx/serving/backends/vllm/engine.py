"""The process of an engine: vLLM, run as the `model.py` of a Python model."""

import asyncio
import json
import os
import secrets
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing, contextmanager
from functools import partial

from tpx.protocol.json_checks import FieldRefused
from tpx.protocol.json_values import JsonObject
from tpx.protocol.openai import OpenAiRequest
from tpx.serving.backends.language.generation import Generation, LanguageModel
from tpx.serving.backends.language.tensors import TextRequest
from tpx.serving.backends.vllm.asgi import Application, AsgiCall
from tpx.serving.backends.vllm.texts import VllmClient, VllmText, chunk_of, text_for_vllm

_LOOK_EVERY_S = 0.05
_ENVIRONMENT = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
"""Variables of vLLM, unless they are set: it reports nothing to its makers."""


class VllmEngine:
    """Implements ThreadedEngine: vLLM batches all requests by itself."""

    endpoints: frozenset[str]
    context: int
    _application: Application
    _client: VllmClient
    _adapters: Mapping[str, object]

    def __init__(self, settings: JsonObject, args: Mapping[str, str]) -> None:
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        gpus = args["model_instance_device_id"] if args["model_instance_kind"] == "GPU" else settings["gpus"]
        if gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = gpus
        self._name = args["model_name"]
        self._looks: dict[object, Callable[[], None]] = {}
        """Looks after the client of each request in the engine, by its task."""
        self._started = AsyncExitStack()  # never closed: the process ends with it
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="tpx-vllm", daemon=True).start()
        asyncio.run_coroutine_threadsafe(self._start(settings["arguments"]), self._loop).result()

    def adapt(self, asked: OpenAiRequest | TextRequest) -> tuple[bytes, int] | VllmText:
        """Return the request as vLLM takes it, over HTTP with the choices per prompt: always a stream where
        that has chunks, which can be cancelled.
        """
        if isinstance(asked, TextRequest):
            text = text_for_vllm(asked)
            self._check_adapter("sampling_parameters.lora_name", text.lora)
            return text
        body = dict(asked.fields)
        adapter = body.pop("lora_name", "")
        self._check_adapter("lora_name", adapter)
        body["model"] = adapter or self._name
        if asked.endpoint in ("chat/completions", "completions"):
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        elif asked.endpoint == "responses":
            body["store"] = False
        return json.dumps(body).encode(), asked.fields.get("n", 1)

    def _check_adapter(self, path: str, name: str) -> None:
        if name and name not in self._adapters:
            has = ", ".join(sorted(self._adapters)) or "none"
            raise FieldRefused(path, f"model '{self._name}' has no adapter '{name}' (it has {has})")

    def run(self, generation: Generation) -> None:
        body = generation.body
        if isinstance(body, VllmText):
            calling = self._generate(generation, body, body.prompt())
        else:
            calling = self._call(AsgiCall(generation))
        asyncio.run_coroutine_threadsafe(calling, self._loop).result()

    async def _call(self, call: AsgiCall) -> None:
        with self._looking(call.look):
            await self._application(call.scope, call.receive, call.send)

    @contextmanager
    def _looking(self, look: Callable[[], None]) -> Iterator[None]:
        task = asyncio.current_task()
        self._looks[task] = look
        try:
            yield
        finally:
            del self._looks[task]

    async def _generate(self, generation: Generation, text: VllmText, prompt: JsonObject) -> None:
        from vllm.exceptions import VLLMClientError

        task = asyncio.current_task()

        def look() -> None:
            if generation.take(b"") and task is not None:
                task.cancel()

        made = 0
        try:
            with self._looking(look):
                [rendered] = await self._client.renderer.render_cmpl_async([prompt])
                adapter = self._adapters.get(text.lora)
                outputs = self._client.generate(
                    rendered, text.sampling, secrets.token_hex(16), lora_request=adapter
                )
                async with aclosing(outputs):
                    async for output in outputs:
                        if not made:
                            generation.note_prompt(len(output.prompt_token_ids))
                        made += len(output.outputs[0].token_ids)
                        if generation.take(chunk_of(output, made, logprobs=text.logprobs)):
                            return
        except VLLMClientError as exc:
            raise ValueError(str(exc)) from exc
        except asyncio.CancelledError:
            return  # by `look`: the client has left

    async def _start(self, arguments: JsonObject) -> None:
        from tpx.serving.backends.vllm.application import started_vllm

        vllm = await self._started.enter_async_context(started_vllm(arguments, self._name))
        self.endpoints, self.context = vllm.endpoints, vllm.context
        self._application, self._client, self._adapters = vllm.application, vllm.client, vllm.adapters
        self._watching = asyncio.create_task(self._watch(vllm.client))

    async def _watch(self, client: VllmClient) -> None:
        """Notice clients that have left, and the end of vLLM's own processes."""
        while not client.errored:
            await asyncio.sleep(_LOOK_EVERY_S)
            for look in list(self._looks.values()):
                look()
        sys.stderr.write("vLLM's engine has ended\n")
        sys.stderr.flush()
        os._exit(1)  # the server fails its requests, and starts it again


TritonPythonModel = partial(LanguageModel, VllmEngine)
"""The model as the worker runs it."""
