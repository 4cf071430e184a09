"""The limits of a gRPC server's connections; the keepalive ones have gRPC's own defaults."""

from dataclasses import dataclass, field

from tpx.protocol.http2.glitches import GLITCH_BURST, GLITCHES_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepaliveLimits:
    """gRPC's own defaults. Ages of 0 mean no limit."""

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
    """Size of a call's headers, as RFC 9113 counts them. A call with more is refused, and one with more than
    twice as much ends its connection: it is not even decoded to its end."""
    glitch_burst: int = GLITCH_BURST
    glitches_per_s: int = GLITCHES_PER_S
    max_streams: int = 10_000
    preface_timeout_s: int = 10
    frame_timeout_s: int = 60
    """For the rest of a frame or header block whose beginning has come."""
    header_timeout_s: int = 10
    """From the beginning of a header block, or of a frame that is not DATA, to its end."""
    message_timeout_s: int = 60
    """Without a single byte of a message that a call owes; and before `min_receive_rate` counts."""
    min_receive_rate: int = 240
    """Bytes per second, on average, of the messages that a connection's calls owe together; 0: any."""
    max_receive_s: int = 3600
    """From the beginning of a message to its end."""
    write_timeout_s: int = 60
    """Without the client taking a single byte."""
    max_unread_bytes: int = 1 << 30
    """Bytes of answers that wait for the client; an answer beyond them ends its call."""
    response_encoding: str = ""
    """Compress responses with this where the client accepts it."""
    response_level: int = 6
    keepalive: KeepaliveLimits = field(default_factory=KeepaliveLimits)
