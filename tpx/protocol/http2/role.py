"""The seam between an HTTP/2 connection and the gRPC server or client on it: events up, calls down."""

import asyncio
from typing import NamedTuple, Protocol

from tpx.protocol.http2.frames import Http2Error


class StreamReset(NamedTuple):
    """The peer ended a stream, or we did for an error of the peer's."""

    stream_id: int
    code: int


class GoingAway(NamedTuple):
    """The peer takes no new streams."""

    last_stream_id: int
    code: int
    reason: bytes


class SettingsChanged(NamedTuple):
    """The peer's settings apply from now on."""

    max_streams: int


class PingReceived(NamedTuple):
    """The peer sent a PING, or with `ack` answered ours."""

    payload: bytes
    ack: bool


class ProtocolViolated(NamedTuple):
    """The peer broke the protocol: the connection has to end with GOAWAY."""

    error: Http2Error


class Lost(NamedTuple):
    """The transport is closed."""

    error: Exception | None


Event = StreamReset | GoingAway | SettingsChanged | PingReceived | ProtocolViolated | Lost


class Role(Protocol):
    """Receiver of a connection's events. Every method but `opened` may raise Http2Error, which ends the
    connection."""

    def opened(self, transport: asyncio.BaseTransport) -> None:
        """Greet the peer: the connection can be written to."""

    def begin_read(self, data: bytes) -> int:
        """Take a look at a read before its frames are parsed.

        Returns where these begin; -1: keep the read until more has come. `data` is empty for a read that went
        into a stream's landing.
        """

    def headers(self, stream_id: int, flags: int, block: bytes) -> None:
        """Take a complete header block."""

    def not_open(self, stream_id: int, what: str) -> None:
        """Raise Http2Error if a frame of this kind is an error on a stream that is not open."""

    def on_event(self, event: Event) -> None:
        """React to one of the rare events."""
