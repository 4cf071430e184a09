"""The process of an engine: llama.cpp's server as a library, run as the `model.py` of a Python model.

A thread per sequence hands a request to llama.cpp and waits there; llama.cpp batches the sequences of all
threads and calls back with each token. The callback posts it and returns: it never waits for a client.
"""

import json
import threading
import time
from collections import deque

from tpx.errors import InvalidRequest
from tpx.protocol.json_values import JsonObject
from tpx.protocol.openai import decode
from tpx.serving.backends.llamacpp.adapting import adapt, from_tensors
from tpx.serving.backends.llamacpp.library import LlamaServer, start_server
from tpx.serving.backends.llamacpp.metrics import EngineMetrics
from tpx.serving.backends.llamacpp.views import REQUEST, RESPONSE, OpenAiStream, OpenAiWhole, TextView, View
from tpx.serving.backends.python.worker import frames
from tpx.serving.backends.python.worker.errors import ErrorCode
from tpx.serving.backends.python.worker.execution import Execution
from tpx.serving.backends.python.worker.outbox import Fields, Outbox
from tpx.serving.backends.python.worker.request import InferenceRequest

_clock = time.perf_counter_ns
_PROGRESS = b'"prompt_progress":{'
_CODES = {400: ErrorCode.INVALID_ARG, 501: ErrorCode.UNSUPPORTED, 503: ErrorCode.UNAVAILABLE}
_BEHIND = "the client reads too slowly: the generation was cancelled"
_CANCELLED = "the request was cancelled"


class TritonPythonModel:
    """The model as the worker runs it."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model and start the threads."""
        settings = json.loads(args["engine"])
        self._name = args["model_name"]
        self._parallel: int = settings["n_parallel"]
        self._most_waiting: int = settings["max_queue_size"]
        self._embeds = settings["embeddings"]
        self._metrics = EngineMetrics(self._name, args["model_version"], settings["n_ctx"])
        self._server, self._supports_tools = start_server(settings, self._name)
        self._outbox: Outbox | None = None
        self._changed = threading.Condition(threading.Lock())
        self._waiting: deque[Generation] = deque()
        self._running: set[Generation] = set()
        for index in range(self._parallel):
            threading.Thread(target=self._work, name=f"tpx-sequence-{index}", daemon=True).start()

    def execute(self, requests: list[InferenceRequest]) -> None:
        """Queue requests."""
        for request in requests:
            execution = request._execution
            assert isinstance(execution, Execution)
            if self._outbox is None:
                self._outbox = Outbox(execution)
            generation = Generation(request, execution, self._outbox)
            try:
                self._parse(request, generation)
            except InvalidRequest as exc:
                generation.finish(exc.message, ErrorCode.INVALID_ARG)
            else:
                self._queue(generation)

    def _parse(self, request: InferenceRequest, generation: "Generation") -> None:
        """Set what the engine has to do. Raises InvalidRequest."""
        view: View
        values: JsonObject = {}
        for tensor in request.inputs():
            array = tensor.as_numpy()
            if array.size != 1:
                raise InvalidRequest(f"{tensor.name()}: must have one element, got {array.size}")
            values[tensor.name()] = array.reshape(-1)[0]
        if REQUEST in values:
            others = sorted(values.keys() - {REQUEST})
            if others:
                raise InvalidRequest(f"{others[0]}: not allowed together with {REQUEST}")
            asked = decode(values[REQUEST])
            legacy = asked.fields.get("logprobs", -1) if asked.endpoint == "completions" else -1
            choices = asked.fields.get("n", 1)
            view = (
                OpenAiStream(
                    generation.post, choices, include_usage=asked.include_usage, legacy_logprobs=legacy
                )
                if asked.stream
                else OpenAiWhole(generation.post, choices, legacy_logprobs=legacy)
            )
        elif "text_input" in values:
            asked = from_tensors(values["text_input"], values.get("sampling_parameters", b""))
            stream = bool(values.get("stream", False))
            exclude = bool(values.get("exclude_input_in_output", stream))
            if stream and not exclude:
                raise InvalidRequest("exclude_input_in_output: must not be false while streaming")
            wanted = frozenset(
                name.removeprefix("return_") for name in values if name.startswith("return_") and values[name]
            )
            prefix = b"" if exclude else values["text_input"]
            view = TextView(generation.post, prefix, stream=stream, wanted=wanted)
        else:
            raise InvalidRequest(f"text_input: this input or {REQUEST} is required")
        if (asked.endpoint == "embeddings") != self._embeds:
            does = "embeddings only" if self._embeds else "text only (its parameter embeddings is false)"
            raise InvalidRequest(f"model '{self._name}' makes {does}")
        generation.endpoint, generation.view = asked.endpoint, view
        generation.body = adapt(asked, tools=self._supports_tools, parallel=self._parallel)

    def _queue(self, generation: "Generation") -> None:
        with self._changed:
            if self._full:
                self._drop_cancelled()
            full = self._full
            if not full:
                self._waiting.append(generation)
                self._changed.notify()
        if full:
            text = f"Exceeds maximum queue size of model '{self._name}': {self._most_waiting} requests wait"
            generation.finish(text, frames.OVERLOADED)
        self._note_load()

    @property
    def _full(self) -> bool:
        return len(self._waiting) + len(self._running) >= self._most_waiting + self._parallel

    def _drop_cancelled(self) -> None:
        for _ in range(len(self._waiting)):
            generation = self._waiting.popleft()
            if generation.cancelled:
                generation.finish(_CANCELLED, ErrorCode.CANCELLED)
            else:
                self._waiting.append(generation)

    def _work(self) -> None:
        """Run one request after another."""
        changed = self._changed
        while True:
            with changed:
                while not self._waiting:
                    changed.wait()
                generation = self._waiting.popleft()
                self._running.add(generation)
            self._note_load()
            generation.run(self._server)
            with changed:
                self._running.discard(generation)
            self._metrics.ended(generation)
            self._note_load()

    def _note_load(self) -> None:
        with self._changed:
            running = list(self._running)
            waiting = len(self._waiting)
        self._metrics.note_load(len(running), waiting, sum(each.tokens for each in running))


class Generation:
    """One request in the engine."""

    endpoint: str
    view: View
    body: bytes

    def __init__(self, request: InferenceRequest, execution: Execution, outbox: Outbox) -> None:
        self._handle = request._handle
        self._sender = request.get_response_sender()
        self._outbox = outbox
        self._execution = execution
        self.arrived_ns = _clock()
        self.first_ns = 0
        self.last_ns = 0
        self.prompt_tokens = 0
        self.made = 0
        """Chunks made: about as many tokens."""
        self._behind = False
        self._error: tuple[str, int] | None = None

    @property
    def cancelled(self) -> bool:
        return self._handle in self._execution.cancelled

    @property
    def succeeded(self) -> bool:
        return self._error is None

    @property
    def tokens(self) -> int:
        """Tokens in the cache of the engine, as far as known."""
        return self.prompt_tokens + self.made

    def post(self, fields: Fields) -> None:
        """Send a response."""
        if not self._outbox.post(self._handle, fields):
            self._behind = True

    def finish(self, error: str = "", code: int = 0) -> None:
        """Send the final response."""
        self._sender._close()  # so that it sends no final flag of its own when it is dropped
        if error:
            self._outbox.fail(self._handle, error, code)
        else:
            self._outbox.finish(self._handle)

    def run(self, server: LlamaServer) -> None:
        """Generate until the end; blocks."""
        try:
            if not self.cancelled:
                self._call(server)
            if self._error is None and self.cancelled:
                self._error = _CANCELLED, ErrorCode.CANCELLED
            if self._error is None and self.endpoint != "embeddings":
                self.view.end()
        except (ValueError, RuntimeError) as exc:  # llama.cpp refuses the request
            self._error = str(exc), ErrorCode.INVALID_ARG
        except Exception as exc:  # noqa: BLE001 (one request's boundary)
            self._error = f"{type(exc).__name__}: {exc}", ErrorCode.INTERNAL
        self.finish(*(self._error or ()))

    def _call(self, server: LlamaServer) -> None:
        if self.endpoint == "embeddings":
            answer = server.handle_embeddings(self.body)
            if not self._refused(answer):
                self.post(((RESPONSE, answer),))
        elif self.endpoint == "completions":
            server.handle_completions(self.body, self._take)
        else:
            server.handle_chat_completions(self.body, self._take)

    def _take(self, data: bytes) -> bool:
        """Take a chunk in the thread of the request. Return True to cancel it."""
        try:
            if self.cancelled:
                self._error = _CANCELLED, ErrorCode.CANCELLED
            elif _PROGRESS in data:
                progress = json.loads(data)["prompt_progress"]
                self.prompt_tokens = progress["total"]
                if isinstance(self.view, TextView):
                    self.view.note_prompt(progress["total"])
            elif data != b"null" and not self._refused(data):
                self.last_ns = _clock()
                self.first_ns = self.first_ns or self.last_ns
                self.made += 1
                self.view.take(data)
                if self._behind:
                    self._error = _BEHIND, ErrorCode.UNAVAILABLE
        except Exception as exc:  # noqa: BLE001 (must not pass through llama.cpp)
            self._error = f"{type(exc).__name__}: {exc}", ErrorCode.INTERNAL
        return self._error is not None

    def _refused(self, data: bytes) -> bool:
        """Return whether an answer is an error of llama.cpp, and note it."""
        if not data.startswith(b'{"error"'):
            return False
        error = json.loads(data)["error"]
        self._error = str(error["message"]), _CODES.get(error["code"], ErrorCode.INTERNAL)
        return True
