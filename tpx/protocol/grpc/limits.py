"""Limits of a gRPC server's connections, and the clocks that enforce them: keepalive (gRPC proposals A8
and A9: pings, ping strikes, connection age) and the deadlines of request messages.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import TYPE_CHECKING

import msgspec

from tpx.protocol.grpc.status import Status
from tpx.protocol.http2.frames import GLITCH_BURST, GLITCHES_PER_S

if TYPE_CHECKING:
    from tpx.protocol.grpc.server_call import ServerCall


class KeepaliveLimits(msgspec.Struct, frozen=True, kw_only=True):
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


class GrpcLimits(msgspec.Struct, frozen=True, kw_only=True):
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
    keepalive: KeepaliveLimits = msgspec.field(default_factory=KeepaliveLimits)


_WITHOUT_CALLS_S = 7200.0
_PROBED_NS = 10_000_000_000
"""Time after our last data in which pings cost no strikes. A client that estimates its bandwidth pings
while it reads, and it keeps reading from the system's buffers after our last write; the glitch budget
bounds these pings.
"""
_PINGS_APART_S = 60
"""Interval of our PINGs after the allowed number was sent without data. Older gRPC versions stop
sending, and so never detect a dead client.
"""


class KeepaliveAction(Enum):
    """Action due on a connection."""

    NOTHING = auto()
    PING = auto()
    DEAD = auto()
    DRAIN = auto()
    END = auto()


class Keepalive:
    """Keepalive state of one connection. Times are the listener's ticks, in seconds."""

    def __init__(self, limits: KeepaliveLimits, tick: int) -> None:
        self._limits = limits
        self.opened = tick
        self.heard = tick
        """Tick of the last read from the peer; set by the connection."""
        self._busy = tick
        self._last_stream = 0
        self._pinged: int | None = None
        self._sent_ping = tick
        self._pings = 0  # sent by us since our last data
        self._wrote = False  # data since the client's last PING
        self._drained = False
        self._last_ping_ns = 0
        self._last_data_ns = -_PROBED_NS
        self._strikes = 0
        import random  # late: a server may have HTTP clients only

        # +-10%: connections opened together must not all end together
        self._age_s = limits.max_connection_age_s * random.uniform(0.9, 1.1)

    def ping_received(self, now_ns: int, *, calls: bool, wrote: bool) -> bool:
        """Record a PING. Returns False if the peer has pinged too often while we sent no data."""
        limits = self._limits
        interval_s = limits.min_ping_interval_s if calls or limits.permit_without_calls else _WITHOUT_CALLS_S
        too_soon = self._last_ping_ns and now_ns - self._last_ping_ns < interval_s * 1e9
        self._last_ping_ns = now_ns
        wrote = wrote or self._wrote
        self._wrote = False
        if wrote:
            self._pings, self._last_data_ns = 0, now_ns
        if now_ns - self._last_data_ns < _PROBED_NS or not limits.max_ping_strikes:
            self._strikes = 0
        elif too_soon:
            self._strikes += 1
        return self._strikes <= limits.max_ping_strikes

    def check(self, tick: int, *, calls: bool, last_stream: int = 0, wrote: bool = False) -> KeepaliveAction:
        """Return the action due now. Must be called once per second. `last_stream` reveals calls that
        began and ended, and `wrote` data that we sent, since the last call or PING.
        """
        if calls or last_stream != self._last_stream:
            self._busy, self._last_stream = tick, last_stream
        if wrote:
            self._pings, self._wrote = 0, True
        limits, age = self._limits, tick - self.opened
        old = self._age_s and age > self._age_s
        grace_s = limits.max_connection_age_grace_s
        if old and grace_s and age > self._age_s + grace_s:
            return KeepaliveAction.END
        idle = limits.max_connection_idle_s and tick - self._busy > limits.max_connection_idle_s
        if (old or idle) and not self._drained:
            self._drained = True
            return KeepaliveAction.DRAIN
        limits, most = self._limits, self._limits.max_pings_without_data
        if self._pinged is not None:
            if self.heard >= self._pinged:
                self._pinged = None
            elif tick - self._pinged > limits.timeout_s:
                return KeepaliveAction.DEAD
        elif (
            tick - self.heard >= limits.time_s
            and (calls or limits.permit_without_calls)
            and (not most or self._pings < most or tick - self._sent_ping >= _PINGS_APART_S)
        ):
            self._pinged = self._sent_ping = tick
            self._pings += 1
            return KeepaliveAction.PING
        return KeepaliveAction.NOTHING


_SILENT_S = 2
"""Seconds without a byte after which a message's memory is reclaimed for waiting requests."""
_GIVEN_UP_AT_ONCE = 500  # calls ended per second, to keep the event loop responsive


class _Awaited(msgspec.Struct):
    """Incomplete message: bytes received so far, and the ticks of its start and of its last progress."""

    progress: tuple[int, ...]
    began: int
    since: int

    @property
    def received(self) -> int:
        """Bytes received, without the prefix."""
        return self.progress[1] if self.progress else 0


class MessageDeadlines:
    """Ends the calls of one connection whose request message stalls, never starts, or takes too long."""

    def __init__(self, limits: GrpcLimits) -> None:
        self._limits = limits
        self._awaited: dict[int, _Awaited] = {}  # by stream ID

    def check(self, calls: "Mapping[int, ServerCall]", tick: int) -> None:
        """Record the progress of every message and end overdue calls. Must be called once per second."""
        before, self._awaited = self._awaited, {}
        given_up = 0
        for call in list(calls.values()):
            progress = call.awaited
            if progress is None:
                continue
            seen = before.get(call.id)
            if seen is None or seen.progress[:1] != progress[:1]:
                seen = _Awaited(progress, tick, tick)
            elif seen.progress != progress:
                seen.progress, seen.since = progress, tick
            reason = self._find_overdue_reason(seen, tick, len(before))
            if reason and given_up < _GIVEN_UP_AT_ONCE:
                given_up += 1
                call.give_up(Status.DEADLINE_EXCEEDED, reason)
            else:
                self._awaited[call.id] = seen

    def refuse_silent(self, calls: "Mapping[int, ServerCall]", tick: int, reason: str) -> None:
        """Refuse calls whose message has stalled for seconds, to free their memory."""
        for stream_id, awaited in list(self._awaited.items()):
            call = calls.get(stream_id)
            if call is not None and tick - awaited.since > _SILENT_S:
                call.give_up(Status.UNAVAILABLE, reason)

    def _find_overdue_reason(self, awaited: _Awaited, tick: int, calls: int) -> str:
        """Return the reason for ending a call, or "". `calls`: number that share the client's bandwidth."""
        limits, elapsed_s = self._limits, tick - awaited.began
        if tick - awaited.since > limits.message_timeout_s:
            return f"no byte of the request message for {limits.message_timeout_s} s"
        if elapsed_s > limits.max_receive_s:
            return f"the request message was not complete within {limits.max_receive_s} s"
        slow = awaited.received * calls < limits.min_receive_rate * elapsed_s
        if slow and elapsed_s > limits.message_timeout_s:
            return f"the request message came at less than {limits.min_receive_rate} bytes per second"
        return ""
