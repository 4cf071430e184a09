"""Unary calls that a client repeats on a connection: only stream IDs and the ends of messages differ.

The calls of one read are cut out together and answered without frames being parsed or calls created.
"""

from collections.abc import Callable, Sequence
from itertools import chain, repeat
from struct import Struct

from tpx.protocol.grpc.framing import PREFIX_BYTES, pack_prefix
from tpx.protocol.grpc.metadata import CallHead
from tpx.protocol.grpc.unary_response import OK_TRAILERS, RESPONSE_HEAD
from tpx.protocol.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADER_BYTES,
    HEADERS,
    WINDOW_UPDATE,
    frame_header,
)

_INCREMENT = PREFIX_BYTES.to_bytes(4, "big")
"""Bytes that gRPC's C core grants to each call before its message, to read the prefix of the response."""
_UP_TO_NUMBER = HEADER_BYTES - 4
"""Bytes of a frame header before its stream ID."""

AnswerRepeated = Callable[[Sequence[bytes]], Sequence[bytes]]
"""Takes the ends of the messages of repeated calls. Returns the response messages to as many of them, from
the first on, as can be answered immediately; all have the size that the template was made for.
"""


class RepeatedCalls:
    """Template of the frames of a call and of its response, valid while its header block means this head.

    A call is a HEADERS frame with the block, and a DATA frame with the message. Clients send them one after
    the other for each call, with a WINDOW_UPDATE in between (gRPC's C core), or the HEADERS of several calls
    first (nghttp2).
    """

    __slots__ = (
        "_around", "_bodies", "_heads", "_layouts", "_pack", "answer", "head", "head_size", "payload",
        "response", "together",
    )  # fmt: skip

    def __init__(
        self, head: CallHead, start: bytes, tail: int, response: int, answer: AnswerRepeated, together: int
    ) -> None:
        """Messages are `start` and `tail` other bytes, response messages `response` bytes. Calls are answered
        in multiples of `together`.
        """
        self.head = head
        self.answer = answer
        self.together = together
        self.payload = PREFIX_BYTES + len(start) + tail
        """Bytes of DATA of a call."""
        self.response = PREFIX_BYTES + response
        """Bytes of DATA of a response."""
        prefix = pack_prefix(0, len(start) + tail) + start
        headers = _start_of_frame(HEADERS, END_HEADERS, len(head.block)), head.block
        update = _start_of_frame(WINDOW_UPDATE, 0, len(_INCREMENT)), _INCREMENT
        body = _start_of_frame(DATA, END_STREAM, self.payload), prefix
        self._heads, self._bodies = _RepeatedFrames((headers,)), _RepeatedFrames((body,), tail)
        self._layouts = [
            _RepeatedFrames((headers, body), tail),
            _RepeatedFrames((headers, update, body), tail),
        ]
        """Layouts of calls, the one that was seen last first."""
        self.head_size = self._heads.size
        begin, middle = _start_of_frame(HEADERS, END_HEADERS, len(RESPONSE_HEAD)), RESPONSE_HEAD
        middle += _start_of_frame(DATA, 0, self.response)
        end = _start_of_frame(HEADERS, END_HEADERS | END_STREAM, len(OK_TRAILERS))
        self._around = begin, middle, pack_prefix(0, response), end
        self._pack = Struct(
            f">{len(begin)}sI{len(middle)}sI{PREFIX_BYTES}s{response}s{len(end)}sI{len(OK_TRAILERS)}s"
        ).pack

    def split(self, view: memoryview, stream: int) -> tuple[list[bytes], int, int]:
        """Return the ends of the messages of the calls at the start of `view`, up to the first that does not
        match; the number of bytes of each; and how many HEADERS come before the first message, 0 if they
        come with their messages.

        Stream IDs must be `stream` and those that follow it.
        """
        for layout in self._layouts:
            tails = layout.match(view, stream)
            if tails:
                if layout is not self._layouts[0]:
                    self._layouts.reverse()
                return tails, layout.size, 0
        heads = len(self._heads.match(view, stream))
        rest = view[heads * self._heads.size :]
        return self._bodies.match(rest[: heads * self._bodies.size], stream), self._bodies.size, heads

    def respond(self, stream: int, messages: Sequence[bytes]) -> bytes:
        """Return the frames of the responses to the calls from `stream` on.

        One structure, made for this size, takes a third of the time of `pack_response`.
        """
        begin, middle, prefix, end = map(repeat, self._around)
        numbers = range(stream, stream + 2 * len(messages), 2)
        parts = begin, numbers, middle, numbers, prefix, messages, end, numbers, repeat(OK_TRAILERS)
        return b"".join(map(self._pack, *parts))


class _RepeatedFrames:
    """Frames that come again and again with the next stream ID; only the end of the last one varies."""

    __slots__ = ("_expect", "_unpack", "size")

    def __init__(self, parts: Sequence[tuple[bytes, bytes]], tail: int = 0) -> None:
        """`parts` are for each frame what comes before its stream ID and after it."""
        layout = Struct(">" + "".join(f"{len(start)}sI{len(rest)}s" for start, rest in parts) + f"{tail}s")
        self.size = layout.size
        self._unpack = layout.iter_unpack
        self._expect = tuple(chain.from_iterable((start, 0, rest) for start, rest in parts))

    def match(self, view: memoryview, stream: int) -> list[bytes]:
        """Return the ends of those from the start of `view` on."""
        expected, numbers = list(self._expect), range(1, len(self._expect), 3)
        tails = []
        for *found, tail in self._unpack(view[: len(view) // self.size * self.size]):
            for at in numbers:
                expected[at] = stream
            if found != expected:
                break
            tails.append(tail)
            stream += 2
        return tails


def _start_of_frame(kind: int, flags: int, size: int) -> bytes:
    return frame_header(kind, flags, 0, size)[:_UP_TO_NUMBER]
