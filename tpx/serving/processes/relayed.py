"""Requests that a frontend hands on to the engine: all but inference, which are rare and may take long."""

from collections.abc import Callable, Sequence
from typing import Protocol

from tpx.protocol.grpc.status import Status
from tpx.protocol.http1.head import HttpHead
from tpx.protocol.tensors import Buffer
from tpx.serving.processes import wire
from tpx.serving.processes.channel import ReceivedFrame


class Answering(Protocol):
    """Takes the answers of relayed requests to their frontend."""

    def answer(self, number: int, flags: int, meta: bytes, parts: Sequence[Buffer] = ()) -> None: ...
    def when_gone(self, number: int, call_off: Callable[[], None]) -> None: ...


class RelayedRequest:
    """Stands for an HTTP request in the engine; what it asks for answers it at once or later."""

    def __init__(self, peer: Answering, frame: ReceivedFrame) -> None:
        asked = wire.decode(wire.HttpHead, frame.meta)
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
