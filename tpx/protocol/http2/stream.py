"""One HTTP/2 stream: flow control in both directions, and the outbox."""

from collections import deque

STREAM_WINDOW = 8 << 20
"""Bytes that a peer may send on a stream before we send WINDOW_UPDATE."""


class Stream:
    """State of one stream that connection and sender share; gRPC calls derive from it and interpret its
    bytes.
    """

    __slots__ = (
        "ending",
        "id",
        "notify_below",
        "outbox",
        "peer_ended",
        "queued",
        "receive_window",
        "send_window",
        "shut_since",
        "trailers",
        "we_ended",
        "withheld",
    )

    def __init__(self, stream_id: int, send_window: int) -> None:
        self.id = stream_id
        self.send_window = send_window
        self.receive_window = STREAM_WINDOW
        self.peer_ended = False
        self.we_ended = False
        self.outbox: deque[memoryview | bytearray] | None = None
        self.queued: int  # set with the outbox
        """Bytes in the outbox."""
        self.notify_below: int
        """Outbox size in bytes at which the sender reports room; -1: never."""
        self.withheld: bytearray | None = None
        """DATA deferred to a later read; no WINDOW_UPDATE is sent for it until then."""
        self.ending = False
        """True if the outbox's last byte carries END_STREAM."""
        self.shut_since = 0
        """Tick at which the peer's window was first seen shut with data queued; 0: it is open."""
        self.trailers: bytes | None = None
        """Complete frames that follow the outbox and end the stream."""

    # overridden by calls; called by the connection

    def receive(self, data: bytes, start: int, stop: int) -> None:
        """Handle the payload of a DATA frame; `peer_ended` is already set if it is the last. May raise
        Http2Error.
        """

    def landing(self, remaining: int) -> memoryview | None:  # noqa: ARG002
        """Return a buffer to read the next `remaining` bytes of DATA into; None: pass them to `receive`."""
        return None

    def landed(self, count: int) -> None:
        """Handle `count` bytes of DATA read into the buffer that `landing` returned."""

    def sent(self) -> None:
        """Handle the end of our half of the stream: everything was sent."""

    def read_on(self) -> None:
        """Process withheld data as far as the limits now allow."""

    def eased(self) -> None:
        """Handle the peer having consumed most of the data sent on this stream."""
