"""Server-side keepalive (gRPC proposals A8 and A9): pings, ping strikes, and connection age."""

import random
from enum import Enum, auto

from tpx.protocol.grpc.limits import KeepaliveLimits

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

    __slots__ = (
        "_age_s",
        "_busy",
        "_drained",
        "_last_data_ns",
        "_last_ping_ns",
        "_last_stream",
        "_limits",
        "_pinged",
        "_pings",
        "_sent_ping",
        "_strikes",
        "_wrote",
        "heard",
        "opened",
    )

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

    def look(self, tick: int, *, calls: bool, last_stream: int = 0, wrote: bool = False) -> KeepaliveAction:
        """Return the action due now. Must be called once per second. `last_stream` reveals calls that
        began and ended, and `wrote` data that we sent, since the last call or PING.
        """
        if calls or last_stream != self._last_stream:
            self._busy, self._last_stream = tick, last_stream
        if wrote:
            self._pings, self._wrote = 0, True
        action = self._look_at_age(tick)
        return self._look_at_silence(tick, calls=calls) if action is KeepaliveAction.NOTHING else action

    def _look_at_age(self, tick: int) -> KeepaliveAction:
        limits, age = self._limits, tick - self.opened
        old = self._age_s and age > self._age_s
        grace_s = limits.max_connection_age_grace_s
        if old and grace_s and age > self._age_s + grace_s:
            return KeepaliveAction.END
        idle = limits.max_connection_idle_s and tick - self._busy > limits.max_connection_idle_s
        if (old or idle) and not self._drained:
            self._drained = True
            return KeepaliveAction.DRAIN
        return KeepaliveAction.NOTHING

    def _look_at_silence(self, tick: int, *, calls: bool) -> KeepaliveAction:
        limits = self._limits
        if self._pinged is not None:
            if self.heard >= self._pinged:
                self._pinged = None
            elif tick - self._pinged > limits.timeout_s:
                return KeepaliveAction.DEAD
        elif (
            tick - self.heard >= limits.time_s
            and (calls or limits.permit_without_calls)
            and self._may_ping(tick)
        ):
            self._pinged = self._sent_ping = tick
            self._pings += 1
            return KeepaliveAction.PING
        return KeepaliveAction.NOTHING

    def _may_ping(self, tick: int) -> bool:
        most = self._limits.max_pings_without_data
        return not most or self._pings < most or tick - self._sent_ping >= _PINGS_APART_S
