"""One HTTP/2 stream: flow control in both directions, and what waits to be sent."""

from collections import deque

STREAM_WINDOW = 8 << 20
"""What a peer may send on a stream before we give window back."""


class Stream:
    """The state that connection and sender keep of a stream; calls of gRPC add what its bytes mean."""

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
        """The sender reports room when at most so many bytes are in it; -1: never."""
        self.withheld: bytearray | None = None
        """DATA that is read later; until then the peer gets no window back for it."""
        self.ending = False
        """The last byte of the outbox carries END_STREAM."""
        self.shut_since = 0
        """The tick since which the peer's window is shut while something waits for it; 0: it is not."""
        self.trailers: bytes | None = None
        """Complete frames that follow the outbox and end the stream."""

    # overridden by calls; called by the connection

    def receive(self, data: bytes, start: int, stop: int) -> None:
        """Take the payload of a DATA frame; `peer_ended` tells that nothing follows. May raise Http2Error."""

    def landing(self, remaining: int) -> memoryview | None:  # noqa: ARG002
        """Return where the next `remaining` bytes of DATA may be read directly; None: hand them over."""
        return None

    def landed(self, count: int) -> None:
        """Take `count` bytes of DATA that were read into the landing."""

    def sent(self) -> None:
        """Note that our half is complete."""

    def read_on(self) -> None:
        """Take from what was withheld as much as may be taken now."""

    def eased(self) -> None:
        """Note that the peer has taken most of what this stream had sent."""
