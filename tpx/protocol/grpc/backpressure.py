"""Backpressure: stop reading from a client that does not read its responses.

Responses held back by flow control wait in their calls' outboxes. If one call has too many, its own
messages wait; if the calls of a connection have too many together, all its requests wait. Waiting
requests are kept unparsed and charged to the windows of their stream and connection, so they are
bounded too.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from tpx.errors import RequestError
from tpx.protocol.compression import Inflater
from tpx.protocol.grpc.framing import MessageReader, Packed
from tpx.protocol.grpc.limits import GrpcLimits
from tpx.protocol.grpc.repeated import RepeatedCalls
from tpx.protocol.grpc.status import Status, from_code
from tpx.protocol.http2.connection import Http2Connection
from tpx.protocol.http2.sender import Stream
from tpx.protocol.memory_budget import Account
from tpx.protocol.tensors import Buffer

if TYPE_CHECKING:
    from tpx.protocol.grpc.server_call import ServerCall

UNREAD_BYTES = 64 << 20
"""Bytes of unread responses of one connection above which its requests wait."""
CALL_UNREAD_BYTES = 4 << 20
"""Bytes of unread responses of one call above which its messages wait."""
_READ_AT_ONCE_BYTES = 64 << 10


class ConnectionState:
    """State shared by all calls of one connection, and its response backlog: calls wait in order of arrival
    until there is room.
    """

    def __init__(
        self, connection: Http2Connection, account: Account, limits: GrpcLimits, inflater: Inflater
    ) -> None:
        """Create once the connection is writable."""
        self.connection = connection
        self.sender = connection.sender
        self.account = account
        self.limits = limits
        self.inflater = inflater
        self.read_ns = 0
        """Time of the last read; set only if the listener has an observer."""
        self.repeated: RepeatedCalls | None = None
        """Template of the calls that the client repeats, if it does."""
        self.waiting: dict[int, ServerCall] = {}
        self.sender.watch(self._schedule_resume)

    def received(self, count: int) -> None:
        """Count DATA bytes read (negative: deferred)."""
        self.connection.received(count)
        self.account.hold_request(-count)

    @property
    def full(self) -> bool:
        return self.sender.queued > UNREAD_BYTES or self.account.full

    def wait(self, call: "ServerCall") -> None:
        """Resume `call` once the client has read most of the connection's responses."""
        self.waiting[call.id] = call
        self._await_room()

    def _await_room(self) -> None:
        self.sender.notify(UNREAD_BYTES // 2)
        account = self.account
        if account.full:
            account.budget.wait(account, lambda: not account.full, self._resume_waiting, self._fail_waiting)

    def _fail_waiting(self) -> None:
        """Fail the waiting calls: memory was short for too long."""
        waiting, self.waiting = self.waiting, {}
        for call in waiting.values():
            call.give_up(Status.UNAVAILABLE, self.account.budget.refusal)

    def _schedule_resume(self, stream: Stream | None) -> None:
        # called in the middle of sending, so only schedule what follows
        asyncio.get_running_loop().call_soon(self._resume_waiting if stream is None else stream.eased)

    def _resume_waiting(self) -> None:
        while self.waiting and not self.full:
            self.waiting.pop(next(iter(self.waiting))).read_on()
        if self.waiting:
            self._await_room()


class RequestStream:
    """Request side of one call: turns DATA into messages."""

    def __init__(self, call: "ServerCall", shared: ConnectionState, reader: MessageReader) -> None:
        self._call = call
        self._shared = shared
        self.reader = reader
        self.paused = False
        """True while the consumer of the messages wants no more."""
        self.stalled = False
        """True while the client does not read its responses."""
        self._unpacking: asyncio.Task[Buffer] | None = None
        """Task that decompresses a long message in another thread; later messages wait for it."""
        self.on_stall: Callable[[bool], None] | None = None
        self.on_drain: Callable[[], None] | None = None

    def stall(self, stalled: bool) -> None:
        """Record whether the client reads its responses, and report a change to `on_stall`."""
        if stalled is not self.stalled:
            self.stalled = stalled
            if self.on_stall is not None:
                self.on_stall(stalled)

    def receive(self, data: bytes, start: int, stop: int) -> None:
        """Process the messages in DATA, or withhold what cannot be processed now."""
        call = self._call
        if call.withheld is None and not self._must_wait:
            start = self._read_messages(data, start, stop)
        if start < stop:
            if call.withheld is None:
                call.withheld = bytearray()
            call.withheld += data[start:stop]
            self._shared.received(start - stop)
            self._await_turn_or_room()

    def read_on(self) -> None:
        """Resume with the withheld data."""
        call, shared = self._call, self._shared
        while call.withheld is not None:
            if self._must_wait:
                self._await_turn_or_room()
                return
            piece = bytes(call.withheld[:_READ_AT_ONCE_BYTES])
            if not piece:
                call.withheld = None
                shared.connection.take_from_window(call, 0)  # send the withheld WINDOW_UPDATE
                if call.peer_ended:
                    call.end()
                return
            used = self._read_messages(piece, 0, len(piece))
            if call.withheld is not None:  # the call has not ended
                del call.withheld[:used]
                shared.received(used)

    def _read_messages(self, data: bytes, start: int, stop: int) -> int:
        """Process messages until they must wait. Returns the offset at which processing stopped."""
        call, reader = self._call, self.reader
        try:
            for message in reader.feed(data, start, stop):
                self._take_message(message)
                if call.we_ended:
                    break
                if self._must_wait:
                    return reader.at
        except RequestError as exc:
            call.give_up(from_code(exc.code), exc.message)
        return stop

    def _take_message(self, message: Buffer | Packed) -> None:
        call = self._call
        if not isinstance(message, Packed):
            call.take(message)
            return
        if call.withheld is None:
            call.withheld = bytearray()
        self._unpacking = self._shared.inflater.start(*message)
        self._unpacking.add_done_callback(self._finish_unpacking)

    def _finish_unpacking(self, unpacking: asyncio.Task[Buffer]) -> None:
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
        return held or shared.full or shared.connection.turn_over

    def _await_turn_or_room(self) -> None:
        if self.stalled or self.paused or self._unpacking is not None:
            return
        shared = self._shared
        if shared.full:
            shared.wait(self._call)
        else:
            shared.connection.await_turn(self._call)

    def buffer_received(self, count: int) -> None:
        try:
            message = self.reader.buffer_received(count)
        except RequestError as exc:
            self._call.give_up(from_code(exc.code), exc.message)
            return
        if message is not None:
            self._take_message(message)

    def drop(self) -> None:
        """Discard withheld data: the call has ended."""
        call = self._call
        if self._unpacking is not None:
            self._unpacking.cancel()
        if call.withheld is not None:
            self._shared.received(len(call.withheld))
            call.withheld = None
