"""Relayed verbs: every request other than inference goes from a frontend to the engine.

They are rare and may take long. Few calls of one gRPC connection are with the engine at a time; the
others wait in the frontend, so that calls of other connections are not delayed.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from tpx.errors import Cancelled, TpxError
from tpx.protocol.grpc.server_call import Method, ServerCall
from tpx.protocol.grpc.status import Status
from tpx.protocol.http1.head import HttpHead
from tpx.protocol.http1.request import HttpRequest
from tpx.protocol.tensors import Buffer
from tpx.serving.frontends.grpc_verbs import Rpc, fail
from tpx.serving.frontends.http_verbs import Meaning, Route, answer_error
from tpx.serving.processes import wire
from tpx.serving.processes.channel import ReceivedFrame
from tpx.serving.processes.remote import OnAnswer, OnError
from tpx.serving.processes.wire import FrameKind

_AT_ONCE = 8
"""Maximum number of calls of one connection that are with the engine."""


class Engine(Protocol):
    """Answers relayed requests."""

    def ask_engine(
        self, kind: FrameKind, meta: bytes, payload: Buffer, done: OnAnswer, failed: OnError
    ) -> Callable[[], None]:
        """Send a frame to the engine; call `done` with the answer or `failed` with the error.

        Returns a function that cancels it. Raises NotReady.
        """


class VerbRelay:
    """Relays verbs to the engine; used by both protocols of a frontend."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connections: dict[object, _ConnectionVerbs] = {}

    def relayed_routes(self, routes: Sequence[Route]) -> list[Route]:
        """Return the routes with verbs that relay to the engine."""

        def verb(_: HttpHead, __: re.Match[str]) -> Meaning:
            return self._relay_http

        return [replace(route, verbs=dict.fromkeys(route.verbs, verb)) for route in routes]

    def relayed_rpcs(self, rpcs: Sequence[Rpc]) -> list[Rpc]:
        """Return the methods with unary ones relayed to the engine; streams are handled here."""
        return [
            rpc
            if rpc.method.stream is not None
            else Rpc(category=rpc.category, method=Method(rpc.method.path, unary=self._relay_grpc))
            for rpc in rpcs
        ]

    def _relay_http(self, request: HttpRequest) -> None:
        """Relay an HTTP request; a connection has only one at a time. Raises NotReady."""

        def done(frame: ReceivedFrame) -> None:
            answer = wire.decode(wire.VerbAnswer, frame.meta)
            request.respond(answer.status, answer.text, (frame.payload,) if len(frame.payload) else ())

        meta = wire.encode(wire.Verb(request.head.path, request.head.method))
        failed = partial(answer_error, request)
        request.on_gone = self._engine.ask_engine(FrameKind.HTTP, meta, request.body, done, failed)

    def _relay_grpc(self, call: ServerCall, message: Buffer) -> None:
        """Relay a unary gRPC call when its connection has few others with the engine."""
        verbs = self._connections.get(call.connection)
        if verbs is None:
            leave = partial(self._connections.pop, call.connection, None)
            verbs = self._connections[call.connection] = _ConnectionVerbs(self._engine, leave)
        verbs.add(call, message)


class _ConnectionVerbs:
    """Relayed calls of one connection in order, few of which are with the engine at a time."""

    def __init__(self, engine: Engine, leave: Callable[[], object]) -> None:
        """`leave` is called when none are left."""
        self._engine = engine
        self._leave = leave
        self._waiting: dict[ServerCall, Buffer] = {}
        """Messages of the calls that are not with the engine yet."""
        self._asked = 0
        self._begins = False

    def add(self, call: ServerCall, message: Buffer) -> None:
        self._waiting[call] = message
        call.on_gone = partial(self._drop, call)
        if not self._begins and self._asked < _AT_ONCE:
            self._begin_waiting()

    def _drop(self, call: ServerCall) -> None:
        """Cancel a waiting call because the client has disconnected."""
        del self._waiting[call]
        fail(call, Cancelled("the request was cancelled"))

    def _begin_waiting(self) -> None:
        self._begins = False
        while self._waiting and self._asked < _AT_ONCE:
            call = next(iter(self._waiting))
            message = self._waiting.pop(call)
            self._asked += 1
            try:
                self._begin(call, message)
            except TpxError as exc:
                self._asked -= 1
                fail(call, exc)
        if not self._asked and not self._begins:
            self._leave()

    def _begin(self, call: ServerCall, message: Buffer) -> None:
        """Send a call to the engine. Raises NotReady."""

        def done(frame: ReceivedFrame) -> None:
            answer = wire.decode(wire.VerbAnswer, frame.meta)
            if answer.status:
                call.fail(Status(answer.status), answer.text.decode())
            else:
                call.respond((frame.payload,))
            self._schedule_next()

        def failed(error: TpxError) -> None:
            fail(call, error)
            self._schedule_next()

        meta = wire.encode(wire.Verb(call.method.path.encode()))
        call.on_gone = self._engine.ask_engine(FrameKind.GRPC, meta, message, done, failed)

    def _schedule_next(self) -> None:
        """Begin the next call in the next turn of the event loop.

        When a connection closes, its calls are cancelled one by one; beginning the next at once would
        send calls that are about to be cancelled.
        """
        self._asked -= 1
        if not self._begins:
            self._begins = True
            asyncio.get_running_loop().call_soon(self._begin_waiting)


OnVerbAnswer = Callable[[wire.VerbAnswer, Sequence[Buffer]], None]
"""Sends the answer to a relayed request to its frontend."""


class _Relayed:
    """A relayed request in the engine, answered at once or later."""

    def __init__(self, answer: OnVerbAnswer) -> None:
        self._answer = answer
        self.on_gone: Callable[[], None] | None = None

    def call_off(self) -> None:
        """Cancel it because the client has disconnected."""
        if self.on_gone is not None:
            self.on_gone()


class RelayedRequest(_Relayed):
    """A relayed HTTP request, with the interface of HttpRequest."""

    def __init__(self, verb: wire.Verb, body: Buffer, answer: OnVerbAnswer) -> None:
        super().__init__(answer)
        self.head = HttpHead()
        self.head.method, self.head.path = verb.method, verb.path
        self.body = body

    def respond(self, status: int, headers: bytes, parts: Sequence[Buffer] = ()) -> None:
        """Answer like HttpRequest.respond."""
        self._answer(wire.VerbAnswer(status, headers), parts)


class RelayedCall(_Relayed):
    """A relayed unary gRPC call, with the interface of ServerCall."""

    def respond(self, parts: Sequence[Buffer]) -> None:
        """Answer like ServerCall.respond."""
        self._answer(wire.VerbAnswer(0, b""), parts)

    def fail(self, status: Status, message: str) -> None:
        """Answer like ServerCall.fail."""
        self._answer(wire.VerbAnswer(int(status), message.encode(errors="replace")), ())
