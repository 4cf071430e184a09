"""Relayed verbs: every request other than inference goes from a frontend to the engine.

They are rare and may take long. Few calls of one gRPC connection are with the engine at a time; the
others wait in the frontend, so that calls of other connections are not delayed.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from tpx.errors import Cancelled, TpxError
from tpx.protocol.grpc.server_call import Method, ServerCall
from tpx.protocol.grpc.status import Status
from tpx.protocol.http1.head import HttpHead
from tpx.protocol.http1.server import HttpRequest
from tpx.protocol.tensors import Buffer
from tpx.serving.frontends.grpc_verbs import Rpc, fail
from tpx.serving.frontends.http_verbs import Meaning, Route, answer_error
from tpx.serving.processes import wire
from tpx.serving.processes.channel import ReceivedFrame
from tpx.serving.processes.wire import FrameKind

OnAnswer = Callable[[ReceivedFrame], None]
OnError = Callable[[TpxError], None]
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

        return [
            Route(template=route.template, category=route.category, verbs=dict.fromkeys(route.verbs, verb))
            for route in routes
        ]

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
            answer = wire.decode(wire.HttpAnswer, frame.meta)
            request.respond(answer.status, answer.headers, (frame.payload,) if len(frame.payload) else ())

        meta = wire.encode(wire.RelayedHead(request.head.method, request.head.path))
        failed = partial(answer_error, request)
        request.on_gone = self._engine.ask_engine(FrameKind.HTTP, meta, request.body, done, failed)

    def _relay_grpc(self, call: ServerCall, message: Buffer) -> None:
        """Relay a unary gRPC call when its connection has few others with the engine."""
        verbs = self._connections.get(call.connection)
        if verbs is None:
            leave = partial(self._connections.pop, call.connection, None)
            verbs = self._connections[call.connection] = _ConnectionVerbs(self._engine, leave)
        verb = _Verb(call, message)
        call.on_gone = verb.call_off
        verbs.add(verb)


class _Verb:
    """One relayed gRPC call."""

    __slots__ = ("_call", "_message", "_off", "ended")

    def __init__(self, call: ServerCall, message: Buffer) -> None:
        self._call = call
        self._message = message
        self._off: Callable[[], None] | None = None
        self.ended = False
        """True after it was cancelled before it was sent."""

    def begin(self, engine: Engine, ended: Callable[[], None]) -> None:
        """Send it to the engine; `ended` is called after the answer. Raises NotReady."""

        def done(frame: ReceivedFrame) -> None:
            answer = wire.decode(wire.GrpcAnswer, frame.meta)
            if answer.status:
                self._call.fail(Status(answer.status), answer.message)
            else:
                self._call.respond((frame.payload,))
            ended()

        def failed(error: TpxError) -> None:
            fail(self._call, error)
            ended()

        meta = wire.encode(wire.GrpcCall(self._call.method.path))
        self._off = engine.ask_engine(FrameKind.GRPC, meta, self._message, done, failed)

    def fail(self, error: TpxError) -> None:
        """Answer with an error."""
        fail(self._call, error)

    def call_off(self) -> None:
        """Cancel it because the client has disconnected."""
        if self._off is not None:
            self._off()
        else:
            self.ended = True
            self._message = b""
            self.fail(Cancelled("the request was cancelled"))


class _ConnectionVerbs:
    """Relayed calls of one connection in order, few of which are with the engine at a time."""

    def __init__(self, engine: Engine, leave: Callable[[], object]) -> None:
        """`leave` is called when none are left."""
        self._engine = engine
        self._leave = leave
        self._waiting: deque[_Verb] = deque()
        self._asked = 0
        self._begins = False

    def add(self, verb: _Verb) -> None:
        self._waiting.append(verb)
        if not self._begins and self._asked < _AT_ONCE:
            self._begin_waiting()

    def _schedule_next(self) -> None:
        """Begin the next call in the next turn of the event loop.

        When a connection closes, its calls are cancelled one by one; beginning the next at once would
        send calls that are about to be cancelled.
        """
        self._asked -= 1
        if not self._begins:
            self._begins = True
            asyncio.get_running_loop().call_soon(self._begin_waiting)

    def _begin_waiting(self) -> None:
        self._begins = False
        waiting = self._waiting
        while waiting and self._asked < _AT_ONCE:
            verb = waiting.popleft()
            if verb.ended:
                continue
            self._asked += 1
            try:
                verb.begin(self._engine, self._schedule_next)
            except TpxError as exc:
                self._asked -= 1
                verb.fail(exc)
        if not self._asked and not self._begins:
            self._leave()


class Answering(Protocol):
    """Sends the answers of relayed requests to their frontend."""

    def answer(self, number: int, flags: int, meta: bytes, parts: Sequence[Buffer] = ()) -> None: ...
    def when_gone(self, number: int, call_off: Callable[[], None]) -> None: ...


class _Relayed:
    """A relayed request in the engine, answered at once or later."""

    def __init__(self, peer: Answering, number: int) -> None:
        self._peer = peer
        self._number = number
        self._on_gone: Callable[[], None] | None = None

    @property
    def on_gone(self) -> Callable[[], None] | None:
        return self._on_gone

    @on_gone.setter
    def on_gone(self, call_off: Callable[[], None] | None) -> None:
        self._on_gone = call_off
        if call_off is not None:
            self._peer.when_gone(self._number, call_off)


class RelayedRequest(_Relayed):
    """A relayed HTTP request, with the interface of HttpRequest."""

    def __init__(self, peer: Answering, frame: ReceivedFrame) -> None:
        super().__init__(peer, frame.number)
        head = wire.decode(wire.RelayedHead, frame.meta)
        self.head = HttpHead()
        self.head.method, self.head.path = head.method, head.path
        self.body: Buffer = frame.payload

    def respond(self, status: int, headers: bytes, parts: Sequence[Buffer] = ()) -> None:
        """Answer like HttpRequest.respond."""
        self._peer.answer(self._number, 0, wire.encode(wire.HttpAnswer(status, headers)), parts)


class RelayedCall(_Relayed):
    """A relayed unary gRPC call, with the interface of ServerCall."""

    def __init__(self, peer: Answering, frame: ReceivedFrame) -> None:
        super().__init__(peer, frame.number)
        self.path = wire.decode(wire.GrpcCall, frame.meta).path

    def respond(self, parts: Sequence[Buffer]) -> None:
        """Answer like ServerCall.respond."""
        self._peer.answer(self._number, 0, wire.encode(wire.GrpcAnswer(0, "")), parts)

    def fail(self, status: Status, message: str) -> None:
        """Answer like ServerCall.fail."""
        text = message.encode(errors="replace").decode()
        self._peer.answer(self._number, 0, wire.encode(wire.GrpcAnswer(int(status), text)))
