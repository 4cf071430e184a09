"""Requests that a frontend hands on to the engine: all but inference, which are rare and may take long.

Few of one gRPC connection are with the engine at a time: the others wait in the frontend, and those of other
connections come between.
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
from tpx.protocol.http1.request import HttpRequest
from tpx.protocol.tensors import Buffer
from tpx.serving.frontends.grpc_verbs import Rpc, fail
from tpx.serving.frontends.http_answers import answer_error
from tpx.serving.frontends.http_routes import Meaning, Route
from tpx.serving.processes import wire
from tpx.serving.processes.channel import ReceivedFrame
from tpx.serving.processes.wire import FrameKind

OnAnswer = Callable[[ReceivedFrame], None]
OnError = Callable[[TpxError], None]
_AT_ONCE = 8
"""Requests of one connection that are with the engine."""


class Engine(Protocol):
    """Answers requests."""

    def ask_engine(
        self, kind: FrameKind, meta: bytes, payload: Buffer, done: OnAnswer, failed: OnError
    ) -> Callable[[], None]:
        """Ask, and call `done` or `failed` with what comes of it; returns what calls it off.

        Raises NotReady.
        """


class VerbRelay:
    """Has the engine answer; implements the relays of both protocols, in a frontend."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connections: dict[object, _ConnectionVerbs] = {}

    def relayed_routes(self, routes: Sequence[Route]) -> list[Route]:
        """Return routes whose verbs the engine answers."""

        def verb(_: HttpHead, __: re.Match[str]) -> Meaning:
            return self._relay_http

        return [
            Route(template=route.template, category=route.category, verbs=dict.fromkeys(route.verbs, verb))
            for route in routes
        ]

    def relayed_rpcs(self, rpcs: Sequence[Rpc]) -> list[Rpc]:
        """Return methods that the engine answers; streams stay here."""
        return [
            rpc
            if rpc.method.stream is not None
            else Rpc(category=rpc.category, method=Method(rpc.method.path, unary=self._relay_grpc))
            for rpc in rpcs
        ]

    def _relay_http(self, request: HttpRequest) -> None:
        """Have the engine answer a request: a connection has one at a time. Raises NotReady."""

        def done(frame: ReceivedFrame) -> None:
            answer = wire.decode(wire.HttpAnswer, frame.meta)
            request.respond(answer.status, answer.headers, (frame.payload,) if len(frame.payload) else ())

        meta = wire.encode(wire.RelayedHead(request.head.method, request.head.path))
        failed = partial(answer_error, request)
        request.on_gone = self._engine.ask_engine(FrameKind.HTTP, meta, request.body, done, failed)

    def _relay_grpc(self, call: ServerCall, message: Buffer) -> None:
        """Have the engine answer a unary call, in its connection's turn."""
        verbs = self._connections.get(call.connection)
        if verbs is None:
            leave = partial(self._connections.pop, call.connection, None)
            verbs = self._connections[call.connection] = _ConnectionVerbs(self._engine, leave)
        verb = _Verb(call, message)
        call.when_gone(verb.call_off)
        verbs.add(verb)


class _Verb:
    """One gRPC call that the engine is to answer."""

    __slots__ = ("_call", "_message", "_off", "ended")

    def __init__(self, call: ServerCall, message: Buffer) -> None:
        self._call = call
        self._message = message
        self._off: Callable[[], None] | None = None
        self.ended = False
        """It was called off."""

    def begin(self, engine: Engine, ended: Callable[[], None]) -> None:
        """Ask the engine; `ended` is called with the answer. Raises NotReady."""

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
        """The client has gone."""
        if self._off is not None:
            self._off()
        else:
            self.ended = True
            self._message = b""
            self.fail(Cancelled("the request was cancelled"))


class _ConnectionVerbs:
    """Calls of one connection, in order; few of them are with the engine."""

    def __init__(self, engine: Engine, leave: Callable[[], object]) -> None:
        """`leave` is called when there are none left."""
        self._engine = engine
        self._leave = leave
        self._waiting: deque[_Verb] = deque()
        self._asked = 0
        self._begins = False

    def add(self, verb: _Verb) -> None:
        self._waiting.append(verb)
        if not self._begins and self._asked < _AT_ONCE:
            self._begin()

    def _ended(self) -> None:
        """Have the next one begin later: those of a connection that has gone are called off one by one."""
        self._asked -= 1
        if not self._begins:
            self._begins = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._begins = False
        waiting = self._waiting
        while waiting and self._asked < _AT_ONCE:
            verb = waiting.popleft()
            if verb.ended:
                continue
            self._asked += 1
            try:
                verb.begin(self._engine, self._ended)
            except TpxError as exc:
                self._asked -= 1
                verb.fail(exc)
        if not self._asked and not self._begins:
            self._leave()


class Answering(Protocol):
    """Takes the answers of relayed requests to their frontend."""

    def answer(self, number: int, flags: int, meta: bytes, parts: Sequence[Buffer] = ()) -> None: ...
    def when_gone(self, number: int, call_off: Callable[[], None]) -> None: ...


class RelayedRequest:
    """Stands for an HTTP request in the engine; what it asks for answers it at once or later."""

    def __init__(self, peer: Answering, frame: ReceivedFrame) -> None:
        asked = wire.decode(wire.RelayedHead, frame.meta)
        self.head = HttpHead()
        self.head.method, self.head.path = asked.method, asked.path
        self.body: Buffer = frame.payload
        self._peer = peer
        self._number = frame.number

    @property
    def on_gone(self) -> Callable[[], None] | None:
        return None

    @on_gone.setter
    def on_gone(self, call_off: Callable[[], None] | None) -> None:
        if call_off is not None:
            self._peer.when_gone(self._number, call_off)

    def respond(self, status: int, headers: bytes, parts: Sequence[Buffer] = ()) -> None:
        """Answer, as HttpRequest.respond."""
        self._peer.answer(self._number, 0, wire.encode(wire.HttpAnswer(status, headers)), parts)


class RelayedCall:
    """Stands for a unary gRPC call in the engine."""

    def __init__(self, peer: Answering, frame: ReceivedFrame) -> None:
        self.path = wire.decode(wire.GrpcCall, frame.meta).path
        self._peer = peer
        self._number = frame.number

    def when_gone(self, call_off: Callable[[], None]) -> None:
        """As ServerCall.when_gone."""
        self._peer.when_gone(self._number, call_off)

    def respond(self, parts: Sequence[Buffer]) -> None:
        """As ServerCall.respond."""
        self._peer.answer(self._number, 0, wire.encode(wire.GrpcAnswer(0, "")), parts)

    def fail(self, status: Status, message: str) -> None:
        """As ServerCall.fail."""
        text = message.encode(errors="replace").decode()
        self._peer.answer(self._number, 0, wire.encode(wire.GrpcAnswer(int(status), text)))
