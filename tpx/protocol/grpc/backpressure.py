"""A client that does not read its answers is not read from.

Answers that flow control holds back wait in their calls' outboxes. While those of one call are many, its own
messages wait; while those of all calls of a connection are many, so do all its requests. What waits is held
as it came, and the windows of its stream and of the connection stay smaller by it, so that it is bounded too.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Callable

from tpx.errors import RequestError
from tpx.protocol.grpc.framing import MessageReader, Packed
from tpx.protocol.grpc.limits import GrpcLimits
from tpx.protocol.grpc.status import Status, from_code
from tpx.protocol.http2.connection import Http2Connection
from tpx.protocol.http2.sender import FrameSender
from tpx.protocol.http2.stream import Stream
from tpx.protocol.inflation import Inflater
from tpx.protocol.memory_budget import Account
from tpx.protocol.tensors import Buffer

UNREAD_BYTES = 64 << 20
"""Of answers that wait for the client of one connection: beyond them nothing new of it begins."""
CALL_UNREAD_BYTES = 4 << 20
"""The same for one call."""
_READ_AT_ONCE_BYTES = 64 << 10


class IncomingCall(Stream):
    """A call whose messages are read as backpressure allows."""

    __slots__ = ()

    @abstractmethod
    def take(self, message: Buffer) -> None:
        """A message has come."""

    @abstractmethod
    def end(self) -> None:
        """The client's half has ended, and all of it was taken."""

    @abstractmethod
    def give_up(self, status: Status, why: str) -> None:
        """End the call with an error that is not of its server."""


class Room:
    """The room that one connection has for answers; calls wait for it in the order in which they came."""

    def __init__(self, sender: FrameSender, account: Account) -> None:
        self._sender = sender
        self._account = account
        self._waiting: dict[int, IncomingCall] = {}
        sender.watch(self._freed)

    @property
    def full(self) -> bool:
        return self._sender.queued > UNREAD_BYTES or self._account.full

    def wait(self, call: IncomingCall) -> None:
        """Let a call read on when the client has read most of what the connection owes it."""
        self._waiting[call.id] = call
        self._sender.notify(UNREAD_BYTES // 2)
        self._wait_for_memory()

    def _wait_for_memory(self) -> None:
        account = self._account
        if account.full:
            account.budget.wait(account, lambda: not account.full, self._let_in, self._refuse)

    def _refuse(self) -> None:
        """There was no memory for too long."""
        waiting, self._waiting = self._waiting, {}
        for call in waiting.values():
            call.give_up(Status.UNAVAILABLE, self._account.budget.refusal)

    def wait_for_own(self, stream: Stream) -> None:
        """Have `eased` of a call called when the client has read most of what that call owes it."""
        self._sender.notify(CALL_UNREAD_BYTES // 2, stream)

    def clear(self) -> None:
        """The connection is gone."""
        self._waiting.clear()

    def _freed(self, stream: Stream | None) -> None:
        # called in the middle of sending: what follows from it comes after
        asyncio.get_running_loop().call_soon(self._let_in if stream is None else stream.eased)

    def _let_in(self) -> None:
        while self._waiting and not self.full:
            self._waiting.pop(next(iter(self._waiting))).read_on()
        if self._waiting:
            self._sender.notify(UNREAD_BYTES // 2)
            self._wait_for_memory()


class Shared:
    """State that all calls of one connection share."""

    __slots__ = ("account", "connection", "inflater", "limits", "read_ns", "room", "sender")

    def __init__(
        self, connection: Http2Connection, account: Account, limits: GrpcLimits, inflater: Inflater
    ) -> None:
        """Begin when the connection can be written to."""
        self.connection = connection
        self.sender = connection.sender
        self.account = account
        self.limits = limits
        self.inflater = inflater
        self.room = Room(self.sender, account)
        self.read_ns = 0
        """When anything was read last; known if the listener has an observer."""

    def received(self, count: int) -> None:
        """Count DATA that was read, or, negative, will be read later."""
        self.connection.received(count)
        self.account.hold_request(-count)


class Intake:
    """The DATA of one call on its way to messages."""

    __slots__ = (
        "_call",
        "_shared",
        "_unpacking",
        "on_drain",
        "on_stall",
        "paused",
        "reader",
        "stalled",
    )

    def __init__(self, call: IncomingCall, shared: Shared, reader: MessageReader) -> None:
        self._call = call
        self._shared = shared
        self.reader = reader
        self.paused = False
        """Whoever takes the messages has enough for now."""
        self.stalled = False
        """The client does not take what was sent."""
        self._unpacking: asyncio.Task[Buffer] | None = None
        """A long compressed message on its way through another thread; what follows it waits."""
        self.on_stall: Callable[[bool], None] | None = None
        self.on_drain: Callable[[], None] | None = None

    def stall(self, stalled: bool) -> None:
        """Note whether the client takes what was sent, and tell it."""
        if stalled is not self.stalled:
            self.stalled = stalled
            if self.on_stall is not None:
                self.on_stall(stalled)

    def receive(self, data: bytes, start: int, stop: int) -> None:
        """Take the messages of DATA, or keep for later what may not be taken now."""
        call = self._call
        if call.withheld is None and not self._must_wait:
            start = self._read(data, start, stop)
        if start < stop:
            if call.withheld is None:
                call.withheld = bytearray()
            call.withheld += data[start:stop]
            self._shared.received(start - stop)
            self._wait()

    def read_on(self) -> None:
        """Go on with what was kept."""
        call, shared = self._call, self._shared
        while call.withheld is not None:
            if self._must_wait:
                self._wait()
                return
            piece = bytes(call.withheld[:_READ_AT_ONCE_BYTES])
            if not piece:
                call.withheld = None
                shared.connection.take_from_window(call, 0)
                if call.peer_ended:
                    call.end()
                return
            used = self._read(piece, 0, len(piece))
            if call.withheld is not None:  # the call has not ended
                del call.withheld[:used]
                shared.received(used)

    def _read(self, data: bytes, start: int, stop: int) -> int:
        """Take messages while they may be taken; returns where that ended."""
        call, reader = self._call, self.reader
        try:
            for message in reader.feed(data, start, stop):
                self._take(message)
                if call.we_ended:
                    break
                if self._must_wait:
                    return reader.at
        except RequestError as exc:
            call.give_up(from_code(exc.code), exc.message)
        return stop

    def _take(self, message: Buffer | Packed) -> None:
        call = self._call
        if not isinstance(message, Packed):
            call.take(message)
            return
        if call.withheld is None:
            call.withheld = bytearray()
        self._unpacking = self._shared.inflater.start(*message)
        self._unpacking.add_done_callback(self._unpacked)

    def _unpacked(self, unpacking: asyncio.Task[Buffer]) -> None:
        self._unpacking = None
        if unpacking.cancelled():
            return
        try:
            message = unpacking.result()
        except RequestError as exc:
            self._call.give_up(from_code(exc.code), exc.message)
            return
        self._call.take(message)
        self.read_on()

    @property
    def _must_wait(self) -> bool:
        shared = self._shared
        held = self.stalled or self.paused or self._unpacking is not None
        return held or shared.room.full or shared.connection.turn_over

    def _wait(self) -> None:
        if self.stalled or self.paused or self._unpacking is not None:
            return
        shared = self._shared
        if shared.room.full:
            shared.room.wait(self._call)
        else:
            shared.connection.await_turn(self._call)

    def absorb(self, data: bytes, start: int, stop: int) -> bool:
        """Take DATA from the middle of a message; False, and nothing is taken, if it is anything else."""
        return self._call.withheld is None and self.reader.absorb(data, start, stop)

    def landing(self, remaining: int) -> memoryview | None:
        """Where the next bytes of a large message may be read directly."""
        return self.reader.landing(remaining) if self._call.withheld is None else None

    def landed(self, count: int) -> None:
        try:
            message = self.reader.landed(count)
        except RequestError as exc:
            self._call.give_up(from_code(exc.code), exc.message)
            return
        if message is not None:
            self._take(message)

    def drop(self) -> None:
        """The call has ended: nobody reads what was kept."""
        call = self._call
        if self._unpacking is not None:
            self._unpacking.cancel()
        if call.withheld is not None:
            self._shared.received(len(call.withheld))
            call.withheld = None
