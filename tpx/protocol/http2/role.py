"""The seam between an HTTP/2 connection and its user, a gRPC server or client: events of the connection."""

import asyncio
from typing import NamedTuple, Protocol

from tpx.protocol.http2.frames import Http2Error


class StreamReset(NamedTuple):
    """The peer reset a stream, or we did because of the peer's error."""

    stream_id: int
    code: int


class GoingAway(NamedTuple):
    """The peer accepts no new streams."""

    last_stream_id: int
    code: int
    reason: bytes


class SettingsChanged(NamedTuple):
    """The peer's new settings, in effect now."""

    max_streams: int


class PingReceived(NamedTuple):
    """The peer sent a PING or, with `ack`, acknowledged ours."""

    payload: bytes
    ack: bool


class ProtocolViolated(NamedTuple):
    """The peer violated the protocol: the connection must end with GOAWAY."""

    error: Http2Error


class Lost(NamedTuple):
    """The transport is closed."""

    error: Exception | None


Event = StreamReset | GoingAway | SettingsChanged | PingReceived | ProtocolViolated | Lost


class Role(Protocol):
    """Receiver of a connection's events. All methods but `opened` may end it by raising Http2Error."""

    def opened(self, transport: asyncio.BaseTransport) -> None:
        """Greet the peer: the connection is now writable."""

    def begin_read(self, data: bytes) -> int:
        """Inspect a read before its frames are parsed.

        Returns the offset of the first frame; -1: buffer the read until more data arrives. `data` is
        empty if the read went directly into a stream's buffer.
        """

    def headers(self, stream_id: int, flags: int, block: bytes) -> None:
        """Handle a complete header block."""

    def not_open(self, stream_id: int, what: str) -> None:
        """Raise Http2Error if a frame of type `what` is an error on a stream that is not open."""

    def on_event(self, event: Event) -> None:
        """Handle one of the infrequent events."""
