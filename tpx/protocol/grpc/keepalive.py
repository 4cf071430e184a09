"""When a connection is pinged, sent away for pinging, or too old: the server's side of gRPC proposals A8 and
A9."""

import random
from dataclasses import dataclass
from enum import Enum, auto

_WITHOUT_CALLS_S = 7200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepaliveLimits:
    """gRPC's own defaults. Ages of 0 mean no limit."""

    time_s: float = 7200.0
    timeout_s: float = 20.0
    permit_without_calls: bool = False
    min_ping_interval_s: float = 300.0
    max_ping_strikes: int = 2
    max_connection_age_s: float = 0.0
    max_connection_age_grace_s: float = 0.0


class Action(Enum):
    """What a connection does after a look at its clock."""

    NOTHING = auto()
    PING = auto()
    DEAD = auto()
    DRAIN = auto()
    END = auto()


class Keepalive:
    """The clock of one connection. Times are the listener's ticks, in seconds."""

    __slots__ = ("_age_s", "_drained", "_last_ping_ns", "_limits", "_opened", "_pinged", "_strikes", "heard")

    def __init__(self, limits: KeepaliveLimits, tick: int) -> None:
        self._limits = limits
        self._opened = tick
        self.heard = tick
        """When the peer was last heard of; set by the connection."""
        self._pinged: int | None = None
        self._drained = False
        self._last_ping_ns = 0
        self._strikes = 0
        # a tenth either way, so that connections opened together do not all end together
        self._age_s = limits.max_connection_age_s * random.uniform(0.9, 1.1)

    def ping_received(self, now_ns: int, *, calls: bool, wrote: bool) -> bool:
        """False when the peer has pinged too often while we had nothing to send it."""
        limits = self._limits
        interval_s = limits.min_ping_interval_s if calls or limits.permit_without_calls else _WITHOUT_CALLS_S
        too_soon = self._last_ping_ns and now_ns - self._last_ping_ns < interval_s * 1e9
        self._last_ping_ns = now_ns
        if wrote or not limits.max_ping_strikes:
            self._strikes = 0
        elif too_soon:
            self._strikes += 1
        return self._strikes <= limits.max_ping_strikes

    def look(self, tick: int, *, calls: bool) -> Action:
        """What to do now; called once a second."""
        limits = self._limits
        if self._age_s and tick - self._opened > self._age_s:
            if limits.max_connection_age_grace_s:
                over = tick - self._opened > self._age_s + limits.max_connection_age_grace_s
                if over:
                    return Action.END
            if not self._drained:
                self._drained = True
                return Action.DRAIN
        if self._pinged is not None:
            if self.heard >= self._pinged:
                self._pinged = None
            elif tick - self._pinged > limits.timeout_s:
                return Action.DEAD
        elif tick - self.heard >= limits.time_s and (calls or limits.permit_without_calls):
            self._pinged = tick
            return Action.PING
        return Action.NOTHING
