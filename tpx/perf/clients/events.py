"""Server-sent events (of the HTML standard): an answer whose pieces are told as they come."""

from collections.abc import Callable

from tpx.protocol.http1.client import HttpClientConnection
from tpx.protocol.http1.head import HeadCache


class EventConnection(HttpClientConnection):
    """An HTTP connection that also tells of a body while it is being read."""

    def __init__(self, heads: HeadCache, scratch: memoryview) -> None:
        super().__init__(heads, scratch)
        self.on_piece: Callable[[bytes], None] | None = None
        """Called with what has come, but for the last piece, which comes with the whole response."""
        self.told = 0
        """Bytes of the body that `on_piece` has had."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.on_piece is not None and self.busy:
            piece = self.body_so_far(self.told)
            if piece:
                self.told += len(piece)
                self.on_piece(piece)


class EventParser:
    """Cuts a stream of text into the data of its events."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of the events that a piece completes; several lines of one event are joined."""
        text = self._held + piece
        # a CR at the end may be half of a CRLF
        held_back = b"\r" if text.endswith(b"\r") else b""
        text = text.removesuffix(held_back).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *events, rest = text.split(b"\n\n")
        self._held = rest + held_back
        return [data for event in events if (data := _data(event)) is not None]


def _data(event: bytes) -> bytes | None:
    """The data of an event; None for a comment, or what has none."""
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None
