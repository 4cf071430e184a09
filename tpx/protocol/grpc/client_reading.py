"""What a gRPC client reads: the frames of responses, put together to messages and ends of calls."""

import time
from abc import abstractmethod
from typing import cast

from tpx.errors import RequestError
from tpx.protocol.grpc.client_call import ClientCall
from tpx.protocol.grpc.framing import PREFIX_BYTES, whole_message
from tpx.protocol.grpc.metadata import ResponseHead
from tpx.protocol.grpc.status import Status
from tpx.protocol.http2 import frames
from tpx.protocol.http2.connection import Http2Connection
from tpx.protocol.http2.frames import END_STREAM, ErrorCode, Http2Error
from tpx.protocol.http2.hpack import BlockDecoder
from tpx.protocol.http2.stream import STREAM_WINDOW, Stream

_clock = time.perf_counter_ns


class ResponseReader(Http2Connection):
    """The reading half of a client's connection; the other half makes the calls, and ends them."""

    def __init__(self, scratch: memoryview) -> None:
        super().__init__(scratch, BlockDecoder(ResponseHead))
        self.closing = False
        """No new call can be made on this connection."""
        self._next_id = 1
        self._greeted = False

    @abstractmethod
    def _end(self, stream_id: int, status: int, message: str, trailers: ResponseHead | None = None) -> None:
        """A call has ended, if it is in flight."""

    def _parse(self, data: bytes, at: int) -> None:
        if not self._greeted and len(data) > 3:
            self._greeted = True
            if data[3] != frames.SETTINGS:
                raise Http2Error(
                    ErrorCode.PROTOCOL_ERROR, "the server does not speak HTTP/2: is this its gRPC port?"
                )
        super()._parse(data, at)

    def _on_headers(self, stream_id: int, flags: int, block: bytes) -> None:
        head = self._blocks.get(block)
        if head is None:
            head = self._blocks.add(block)
        call = cast("ClientCall | None", self.streams.get(stream_id))
        if call is None:
            self._refuse_idle(stream_id, "response")
            return
        if not call.first_byte_ns:
            call.first_byte_ns = _clock()
        if flags & END_STREAM:
            call.peer_ended = True
            status, message = call.outcome(head)
            self._end(stream_id, status, message, head)
        elif call.head is None and not head.http_status.startswith("1"):
            call.head = head

    def _on_data(self, stream_id: int, flags: int, data: bytes, start: int, stop: int) -> None:
        call = cast("ClientCall | None", self.streams.get(stream_id))
        if call is None:
            self._refuse_idle(stream_id, "response")
            return
        if not flags & END_STREAM:
            call.receive_window -= stop - start
            if call.receive_window < STREAM_WINDOW // 2:
                self.take_from_window(call, 0)
        if call.reader is None and call.on_message is None and whole_message(data, start, stop):
            call.data = data[start + PREFIX_BYTES : stop]
        elif start < stop:
            try:
                call.receive(data, start, stop)
            except RequestError as exc:
                self._reject(call, exc)
                return
        if flags & END_STREAM:
            self._end_without_trailers(call)

    def _end_without_trailers(self, call: ClientCall) -> None:
        call.peer_ended = True
        self._end(call.id, Status.UNKNOWN, "the response ended without trailers")

    def _on_landed(self, stream: Stream, count: int, flags: int, last: bool) -> None:
        call = cast("ClientCall", stream)
        self.take_from_window(call, count)
        try:
            call.landed(count)
        except RequestError as exc:
            self._reject(call, exc)
            return
        if last and flags & END_STREAM:
            self._end_without_trailers(call)

    def _reject(self, call: ClientCall, error: RequestError) -> None:
        self._transport.write(frames.rst_stream(call.id, ErrorCode.CANCEL))
        self._end(call.id, Status.INTERNAL, error.message)

    def _refuse_idle(self, stream_id: int, what: str) -> None:
        if stream_id >= self._next_id or not stream_id & 1:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"{what} on idle stream {stream_id}")
