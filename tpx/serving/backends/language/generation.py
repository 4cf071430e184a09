"""The process of an engine, as a Python model: the queue, the requests that are computed, and their answers.

Engines are of two kinds. To one of threads, a thread per sequence hands a request and waits there; the engine
batches the sequences of all threads. One of steps computes on the main thread of the process, between its
frames: its library holds the interpreter lock in a step, so that each switch to another thread would wait for
a whole step. Either gives each chunk to its request, and taking a chunk never waits for a client.
"""

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, runtime_checkable

from tpx.errors import InvalidRequest
from tpx.protocol.json_values import JsonObject
from tpx.protocol.openai import OWN, OpenAiRequest, decode
from tpx.serving.backends.language.metrics import EngineMetrics
from tpx.serving.backends.language.tensors import TextRequest, from_tensors
from tpx.serving.backends.language.views import (
    REQUEST,
    OpenAiStream,
    OpenAiWhole,
    Post,
    TextView,
    UnreadView,
    View,
)
from tpx.serving.backends.python.worker import frames
from tpx.serving.backends.python.worker.errors import ErrorCode
from tpx.serving.backends.python.worker.execution import Execution
from tpx.serving.backends.python.worker.outbox import Fields, Outbox
from tpx.serving.backends.python.worker.request import InferenceRequest

_clock = time.perf_counter_ns
_BEHIND = "the client reads too slowly: the generation was cancelled"
_CANCELLED = "the request was cancelled"
_MOST_UNSTEPPED = 32
"""Executions between two steps, so that many requests do not hold up those that are computed."""


class TextEngine(Protocol):
    """Computes requests, several at a time."""

    endpoints: frozenset[str]
    """Endpoints of OpenAI's API that it has."""
    context: int
    """Tokens that all sequences together can have."""

    def adapt(self, asked: OpenAiRequest | TextRequest) -> object:
        """Return a request as the engine takes it. Raises InvalidRequest, with the field at fault."""


class ThreadedEngine(TextEngine, Protocol):
    """Computes the requests of several threads."""

    def run(self, generation: "Generation") -> None:
        """Compute the request `generation.body` until its end, or until `generation.take` returns True.

        Blocks; called from up to `n_parallel` threads. Raises ValueError or RuntimeError for a request that
        the engine refuses.
        """


@runtime_checkable
class SteppedEngine(TextEngine, Protocol):
    """Computes a token of every sequence in each step, on the thread that calls it."""

    def submit(self, generation: "Generation") -> None:
        """Begin to compute the request `generation.body`. Raises ValueError or RuntimeError if it is
        refused.
        """

    def step(self) -> Sequence["Generation"]:
        """Compute a step; return the requests that have ended, or whose `take` has returned True."""


class LanguageModel:
    """The model as the worker runs it; each engine's `TritonPythonModel` is one."""

    tpx_step: Callable[[], bool] | None = None
    """Computes a step of a SteppedEngine, while no frame waits; returns whether there is more to do."""

    def __init__(
        self, start: Callable[[JsonObject, Mapping[str, str]], ThreadedEngine | SteppedEngine]
    ) -> None:
        """`start` loads an engine by its settings and the arguments of `initialize`."""
        self._start = start

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model, and start the threads of an engine that takes them."""
        settings = json.loads(args["engine"])
        self._name = args["model_name"]
        self._parallel: int = settings["n_parallel"]
        self._most_waiting: int = settings["max_queue_size"]
        self._engine = self._start(settings, args)
        self._metrics = EngineMetrics(self._name, args["model_version"], self._engine.context)
        self._outbox: Outbox | None = None
        self._changed = threading.Condition(threading.Lock())
        self._waiting: deque[Generation] = deque()
        self._running: set[Generation] = set()
        self._unstepped = 0
        """Executions since the last step."""
        if isinstance(self._engine, SteppedEngine):
            self.tpx_step = partial(self._step, self._engine)
            return
        for index in range(self._parallel):
            name = f"tpx-sequence-{index}"
            threading.Thread(target=self._work, args=(self._engine,), name=name, daemon=True).start()

    def execute(self, requests: list[InferenceRequest]) -> None:
        """Queue requests."""
        for request in requests:
            execution = request._execution
            assert isinstance(execution, Execution)
            if self._outbox is None:
                self._outbox = Outbox(execution, by_step=self.tpx_step is not None)
            generation = Generation(request, execution, self._outbox)
            try:
                self._parse(request, generation)
            except InvalidRequest as exc:
                generation.finish(exc.message, ErrorCode.INVALID_ARG)
            else:
                self._queue(generation)
        self._unstepped += 1
        if self.tpx_step is not None and self._unstepped >= _MOST_UNSTEPPED:
            self.tpx_step()

    def _parse(self, request: InferenceRequest, generation: "Generation") -> None:
        """Set what the engine has to do. Raises InvalidRequest."""
        values: JsonObject = {}
        for tensor in request.inputs():
            array = tensor.as_numpy().reshape(-1)
            if tensor.name() == "image":
                values["image"] = list(array)
            elif array.size != 1:
                raise InvalidRequest(f"{tensor.name()}: must have one element, got {array.size}")
            else:
                values[tensor.name()] = array[0]
        asked: OpenAiRequest | TextRequest
        if REQUEST in values:
            others = sorted(values.keys() - {REQUEST})
            if others:
                raise InvalidRequest(f"{others[0]}: not allowed together with {REQUEST}")
            endpoint = json.loads(request.parameters()).get("openai_endpoint", "")
            asked = decode(values[REQUEST], str(endpoint))
            generation.view = _view_of(asked, generation.post)
        elif "text_input" in values:
            asked, generation.view = _read_tensors(values, request.parameters(), generation.post)
        else:
            raise InvalidRequest(f"text_input: this input or {REQUEST} is required")
        if asked.endpoint not in self._engine.endpoints:
            has = ", ".join(f"/v1/{each}" for each in sorted(self._engine.endpoints))
            raise InvalidRequest(f"model '{self._name}' does not serve /v1/{asked.endpoint} (it has {has})")
        generation.endpoint = asked.endpoint
        generation.body = self._engine.adapt(asked)

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

    def _step(self, engine: SteppedEngine) -> bool:
        self._unstepped = 0
        while self._waiting and len(self._running) < self._parallel:
            generation = self._waiting.popleft()
            if generation.attempt(engine.submit):
                self._running.add(generation)
            else:
                self._end(generation)
        if self._running:
            for generation in engine.step():
                self._running.discard(generation)
                self._end(generation)
        if self._outbox is not None:
            self._outbox.flush()
        self._note_load()
        return bool(self._running)

    def _end(self, generation: "Generation") -> None:
        generation.complete()
        self._metrics.ended(generation)

    def _work(self, engine: ThreadedEngine) -> None:
        """Run one request after another."""
        changed = self._changed
        while True:
            with changed:
                while not self._waiting:
                    changed.wait()
                generation = self._waiting.popleft()
                self._running.add(generation)
            self._note_load()
            generation.attempt(engine.run)
            generation.complete()
            with changed:
                self._running.discard(generation)
            self._metrics.ended(generation)
            self._note_load()

    def _note_load(self) -> None:
        with self._changed:
            running = list(self._running)
            waiting = len(self._waiting)
        self._metrics.note_load(len(running), waiting, sum(each.tokens for each in running))


def _view_of(asked: OpenAiRequest, post: Post) -> View:
    if asked.endpoint in OWN or asked.endpoint == "embeddings":
        return UnreadView(post, stream=asked.stream)
    choices = asked.fields.get("n", 1)
    legacy = asked.fields.get("logprobs", -1) if asked.endpoint == "completions" else -1
    if asked.stream:
        return OpenAiStream(post, choices, include_usage=asked.include_usage, legacy_logprobs=legacy)
    return OpenAiWhole(post, choices, legacy_logprobs=legacy)


def _read_tensors(values: JsonObject, parameters: str, post: Post) -> tuple[TextRequest, TextView]:
    """Return the request of Triton's tensors and its view; without `sampling_parameters`, those of the
    request itself are used. Raises InvalidRequest.
    """
    stream = bool(values.get("stream", False))
    exclude = bool(values.get("exclude_input_in_output", stream))
    if stream and not exclude:
        raise InvalidRequest("exclude_input_in_output: must not be false while streaming")
    wanted = frozenset(
        name.removeprefix("return_") for name in values if name.startswith("return_") and values[name]
    )
    sampling = values.get("sampling_parameters", parameters.encode())
    asked = from_tensors(values["text_input"], sampling, values.get("image", ()), wanted)
    return asked, TextView(post, b"" if exclude else values["text_input"], stream=stream, wanted=wanted)


class Generation:
    """One request in the engine."""

    endpoint: str
    view: View
    body: object
    """The request as the engine takes it."""

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
        self._streams = False
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
        if self._streams:
            self._outbox.expect(-1)
        self._sender._close()  # so that it sends no final flag of its own when it is dropped
        if error:
            self._outbox.fail(self._handle, error, code)
        else:
            usage = self.view.usage
            self._outbox.finish(self._handle, usage.prompt or self.prompt_tokens, usage.completion)

    def attempt(self, call: "Callable[[Generation], None]") -> bool:
        """Call the engine unless the request is cancelled; what it raises ends the request. Return whether it
        goes on.
        """
        if self.cancelled:
            self._error = _CANCELLED, ErrorCode.CANCELLED
            return False
        try:
            call(self)
        except (ValueError, RuntimeError) as exc:  # the engine refuses the request
            self._error = str(exc), ErrorCode.INVALID_ARG
        except Exception as exc:  # noqa: BLE001 (one request's boundary)
            self._error = f"{type(exc).__name__}: {exc}", ErrorCode.INTERNAL
        return self._error is None

    def complete(self) -> None:
        """Send what is left, and the end or the error."""
        if self._error is None:
            self.attempt(lambda generation: generation.view.end())
        self.finish(*(self._error or ()))

    def refuse(self, message: str, code: int) -> None:
        """End with an error."""
        self._error = message, code

    def note_prompt(self, tokens: int) -> None:
        """Note the size of the prompt, which is known before the first chunk."""
        self.prompt_tokens = tokens
        if isinstance(self.view, TextView):
            self.view.note_prompt(tokens)

    def _begin(self) -> None:
        self.first_ns = self.last_ns
        if self.view.streams:
            self._streams = True
            self._outbox.expect(1)

    def take(self, data: bytes, *, token: bool = True) -> bool:
        """Take a chunk, or nothing; about a token, unless `token` is false. Return True if the engine must
        cancel the request.
        """
        try:
            if self._handle in self._execution.cancelled:
                self._error = _CANCELLED, ErrorCode.CANCELLED
            elif data:
                self.last_ns = _clock()
                if token:
                    if not self.made:
                        self._begin()
                    self.made += 1
                self.view.take(data)
                if self._behind:
                    self._error = _BEHIND, ErrorCode.UNAVAILABLE
        except Exception as exc:  # noqa: BLE001 (must not pass through the engine)
            self._error = f"{type(exc).__name__}: {exc}", ErrorCode.INTERNAL
        return self._error is not None
