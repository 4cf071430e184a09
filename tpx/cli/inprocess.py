"""The in-process engine as a service of the load generator: no network, no second process.

Server and load generator do not import each other; this module, above both, connects them.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import perf_counter_ns
from typing import NamedTuple

import msgspec

from tpx.errors import MeasurementError, NotFound, TpxError, UsageError
from tpx.options import build
from tpx.perf.clients.base import NO_USAGE, PLAIN, Failure, OnResponse, RequestFields, Slot
from tpx.perf.clients.endpoint import Connections, Endpoint
from tpx.perf.clients.model import (
    ModelDescription,
    ModelKey,
    ServerDescription,
    Snapshot,
    index_entries,
    instead,
    model_counters,
    model_description,
    server_description,
)
from tpx.protocol import model_config
from tpx.protocol.tensors import Buffer, Tensor
from tpx.protocol.v2 import DecodedRequest
from tpx.serving.backpressure import ResponseBackpressure
from tpx.serving.options import ServeConfig
from tpx.serving.request import InferRequest, InferResponse, RequestHead
from tpx.serving.server import InferenceServer

ANSWERED, REFUSED = 0, 1


def connect(endpoint: Endpoint) -> Connections:
    """Return the engine over the repositories of an endpoint; it starts with the first request."""
    if endpoint.headers:
        raise UsageError("-H: --service-kind inprocess has no network, so requests have no headers")
    engine = InProcessEngine(endpoint)
    return Connections(EngineClient(engine, endpoint), EngineControl(engine))


class InProcessEngine:
    """A server without endpoints, on the event loop of the load."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._config = build(
            ServeConfig,
            {
                "model_repository": endpoint.service.model_repository,
                **dict.fromkeys(("allow_http", "allow_grpc", "allow_metrics", "exit_on_error"), False),
            },
        )
        self._server: InferenceServer | None = None

    async def server(self) -> InferenceServer:
        """Return the running server with its models loaded. Raises LoadError."""
        if self._server is None:
            server = InferenceServer(self._config)
            await server.start()
            self._server = server
            if server.repository.unreadable:
                await self.stop()
                raise UsageError("\n".join(server.repository.unreadable))
        return self._server

    async def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop()


class EngineRequest(NamedTuple):
    """A validated request bound to its model."""

    head: RequestHead
    buffers: list[Buffer]


class EngineSequence:
    """Requests of sequences that differ in their id; implements Template."""

    def __init__(self, request: EngineRequest) -> None:
        self._request = request

    def fill(self, sequence: int) -> EngineRequest:
        head, buffers = self._request
        return EngineRequest(head.with_parameters({**head.parameters, "sequence_id": sequence}), buffers)


class Answer:
    """Implements StreamedResponse: the responses received so far."""

    __slots__ = (
        "arrivals", "end_ns", "error", "first_byte_ns", "on_response", "sending", "status", "units",
        "usage",
    )  # fmt: skip

    def __init__(self, on_response: OnResponse) -> None:
        self.on_response = on_response
        self.sending = True
        """True while the request is submitted: a response that arrives meanwhile waits for the next turn."""
        self.status = ANSWERED
        self.error: TpxError | None = None
        self.first_byte_ns = 0
        self.end_ns = 0
        self.arrivals: list[int] = []
        self.units = 0
        self.usage = NO_USAGE


class EngineClient:
    """Implements Client."""

    success = ANSWERED
    slots_per_connection = math.inf

    def __init__(self, engine: InProcessEngine, endpoint: Endpoint) -> None:
        self._engine = engine
        self._model = endpoint.model
        self.streams = endpoint.wire.streaming
        self._slots: list[Slot] = []

    async def prepare(self, tensors: Sequence[Tensor], fields: RequestFields = PLAIN) -> EngineRequest:
        if fields.shared_inputs or any(output.shared_memory for output in fields.outputs):
            raise UsageError(
                "--shared-memory: not available with --service-kind inprocess, where all memory belongs "
                "to the engine"
            )
        request = DecodedRequest(
            model_name=self._model.name,
            model_version=self._model.version,
            parameters=fields.all_parameters,
            inputs=list(tensors),
            outputs=list(fields.outputs),
            default_binary=True,
        )
        head = (await self._engine.server()).plane.bind(request).head
        return EngineRequest(head, [tensor.data for tensor in tensors])

    async def template(self, tensors: Sequence[Tensor], fields: RequestFields) -> EngineSequence:
        return EngineSequence(await self.prepare(tensors, replace(fields, sequence=1)))

    async def open(self, count: int) -> Sequence[Slot]:
        infer = (await self._engine.server()).plane.infer
        call_soon = asyncio.get_running_loop().call_soon

        def send(encoded: EngineRequest, on_response: OnResponse) -> InferRequest:
            answer = Answer(on_response)
            request = InferRequest(encoded.head, encoded.buffers, _take_response, answer)
            if encoded.head.model.decoupled:
                request.backpressure = ResponseBackpressure()
            try:
                infer(request)
            except TpxError as exc:
                _take_error(answer, exc)
            answer.sending = False
            if answer.end_ns:
                call_soon(on_response, answer)
            return request

        while len(self._slots) < count:
            self._slots.append(Slot(None, send))
        del self._slots[count:]
        return self._slots

    async def renew(self, slot: Slot, call: object) -> None:  # noqa: ARG002 (no slot is ever lost)
        """Replace an abandoned request."""
        if isinstance(call, InferRequest):
            call.cancel()

    def failure(self, response: Answer) -> Failure:
        error = response.error
        return Failure("error" if error is None else error.code.value, "" if error is None else error.message)

    async def close(self) -> None:
        await self._engine.stop()


def _take_response(request: InferRequest, response: InferResponse) -> None:
    answer: Answer = request.context
    if response.error is not None:
        _take_error(answer, response.error)
    elif response.outputs or not response.final or not request.head.model.decoupled:
        now_ns = perf_counter_ns()
        if not answer.first_byte_ns:
            answer.first_byte_ns = now_ns
        answer.arrivals.append(now_ns)
    if not response.final:
        return
    if response.error is None:
        arrivals = answer.arrivals
        answer.end_ns = arrivals[-1] if arrivals else perf_counter_ns()
        answer.first_byte_ns = answer.first_byte_ns or answer.end_ns
    if not answer.sending:
        answer.on_response(answer)


def _take_error(answer: Answer, error: TpxError) -> None:
    answer.status, answer.error = REFUSED, error
    answer.end_ns = perf_counter_ns()
    answer.first_byte_ns = answer.first_byte_ns or answer.end_ns


class EngineControl:
    """Implements Control."""

    def __init__(self, engine: InProcessEngine) -> None:
        self._engine = engine

    async def server(self) -> ServerDescription:
        server = await self._engine.server()
        return server_description(msgspec.to_builtins(server.plane.server_metadata()))

    async def model(self, model: ModelKey) -> ModelDescription:
        plane = (await self._engine.server()).plane
        try:
            metadata = plane.model_metadata(model.name, model.version)
        except NotFound as exc:
            index = index_entries(msgspec.to_builtins(entry) for entry in plane.index(ready_only=False))
            raise MeasurementError(f"{exc}{instead(model, index)}") from exc
        config = model_config.to_json(plane.model_config(model.name, model.version))
        return model_description(msgspec.to_builtins(metadata), config)

    async def statistics(self, model: ModelKey) -> Snapshot:
        plane = (await self._engine.server()).plane
        return model_counters({"model_stats": list(plane.statistics(model.name, model.version))})

    async def set_trace(self, settings: Mapping[str, Sequence[str]]) -> None:
        """Do nothing: the command line refuses trace settings for this service."""

    async def close(self) -> None:
        await self._engine.stop()
