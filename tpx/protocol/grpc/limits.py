"""Limits of a gRPC server's connections; the keepalive limits have gRPC's defaults."""

from dataclasses import dataclass, field

from tpx.protocol.http2.frames import GLITCH_BURST, GLITCHES_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepaliveLimits:
    """Keepalive limits with gRPC's defaults. An age of 0 means unlimited."""

    time_s: float = 7200.0
    timeout_s: float = 20.0
    permit_without_calls: bool = False
    max_pings_without_data: int = 2
    min_ping_interval_s: float = 300.0
    max_ping_strikes: int = 2
    max_connection_idle_s: float = 0.0
    max_connection_age_s: float = 0.0
    max_connection_age_grace_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcLimits:
    """Limits of one connection; times in seconds."""

    max_message_bytes: int = 2**31 - 1
    max_metadata_bytes: int = 16 << 10
    """Size of a call's headers as in RFC 9113. A larger list fails the call; one over twice the limit
    ends the connection before it is fully decoded.
    """
    glitch_burst: int = GLITCH_BURST
    glitches_per_s: int = GLITCHES_PER_S
    max_streams: int = 10_000
    preface_timeout_s: int = 10
    frame_timeout_s: int = 60
    """Time to receive the rest of a frame or header block."""
    header_timeout_s: int = 10
    """Time from the start of a header block, or of a non-DATA frame, to its end."""
    message_timeout_s: int = 60
    """Time without a byte of an expected message; also the time before `min_receive_rate` applies."""
    min_receive_rate: int = 240
    """Minimum average rate, in bytes per second, of all incomplete messages of a connection together; 0
    = no minimum.
    """
    max_receive_s: int = 3600
    """Time from the start of a message to its end."""
    write_timeout_s: int = 60
    """Time without the client accepting a byte."""
    max_unread_bytes: int = 1 << 30
    """Bytes of unread responses per connection; a response over the limit ends its call."""
    response_encoding: str = ""
    """Compression of responses if the client accepts it."""
    response_level: int = 6
    keepalive: KeepaliveLimits = field(default_factory=KeepaliveLimits)
