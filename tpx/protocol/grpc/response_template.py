"""Layout of a successful unary response, which lets later responses skip frame-by-frame parsing."""

from collections.abc import Callable, Iterator
from struct import Struct

from tpx.protocol.grpc.client_call import GrpcResponse
from tpx.protocol.grpc.framing import PREFIX_BYTES, whole_message
from tpx.protocol.grpc.metadata import ResponseHead
from tpx.protocol.grpc.status import Status
from tpx.protocol.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADER_BYTES,
    HEADERS,
    header_at,
)

_MOST_BYTES = 16 << 10
"""Largest response, in bytes, worth a template: a larger one costs more than its frames do."""
_NUMBER_BYTES = 4
_UP_TO_NUMBER = HEADER_BYTES - _NUMBER_BYTES


class ResponseTemplate:
    """Layout of a successful response of three frames: header block, message, trailers.

    Valid while both header blocks decode to the same headers.
    """

    __slots__ = ("_begin", "_end", "_head", "_layout", "_prefix", "_trailers", "response", "size")

    def __init__(self, data: bytes, block_stop: int, message_stop: int, trailers: ResponseHead) -> None:
        message_start = block_stop + HEADER_BYTES + PREFIX_BYTES
        layout = Struct(
            f">{_UP_TO_NUMBER}sI"
            f"{block_stop - _NUMBER_BYTES}sI{PREFIX_BYTES}s{message_stop - message_start}s"
            f"{_UP_TO_NUMBER}sI{len(data) - message_stop - HEADER_BYTES}s"
        )
        self._layout = layout.iter_unpack
        self._begin, _, self._head, _, self._prefix, _, self._end, _, self._trailers = layout.unpack(data)
        self.size = len(data)
        self.response = response = GrpcResponse(Status.OK, trailers.message, b"", 0)
        """Object shared by all matching responses; `data` and the times are set for each."""
        response.metadata = trailers.metadata

    def split(self, data: bytes, at: int) -> Iterator[tuple[int, bytes]]:
        """Yield stream ID and message of each response from `at` on, up to the first that does not match."""
        several = memoryview(data)[at : len(data) - (len(data) - at) % self.size]
        for begin, stream, head, of_data, prefix, message, end, of_end, trailers in self._layout(several):
            if (
                stream != of_data
                or stream != of_end
                or prefix != self._prefix
                or head != self._head
                or trailers != self._trailers
                or begin != self._begin
                or end != self._end
            ):
                return
            yield stream, message


def template_of(data: bytes, known: Callable[[bytes], ResponseHead | None]) -> ResponseTemplate | None:
    """Return the template of the response at the start of `data`, or None if it has another layout.
    `known` looks up header blocks that do not depend on the dynamic table.
    """
    stop, stream, frames = 0, header_at(data)[4], []
    for kind, flags in ((HEADERS, END_HEADERS), (DATA, 0), (HEADERS, END_HEADERS | END_STREAM)):
        start = stop + HEADER_BYTES
        if start > len(data):
            return None
        high, low, *rest = header_at(data, stop)
        stop = start + (high << 16 | low)
        if rest != [kind, flags, stream] or stop > min(len(data), _MOST_BYTES):
            return None
        frames.append((start, stop))
    (head_start, head_stop), message, (trailers_start, _) = frames
    trailers = known(data[trailers_start:stop])
    if trailers is None or trailers.status != Status.OK or known(data[head_start:head_stop]) is None:
        return None
    return (
        ResponseTemplate(data[:stop], head_stop, message[1], trailers)
        if whole_message(data, *message)
        else None
    )
