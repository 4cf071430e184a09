"""Budget of "glitches" (HAProxy's term): work that a peer causes without requesting anything."""

import time

from tpx.protocol.http2.frames import ErrorCode, Http2Error

GLITCH_BURST = 2000
GLITCHES_PER_S = 100


class GlitchBudget:
    """Token bucket of `burst` glitches, refilled at `per_s` per second."""

    __slots__ = ("_burst", "_per_s", "_refilled_ns", "left")

    def __init__(self, burst: int = GLITCH_BURST, per_s: int = GLITCHES_PER_S) -> None:
        self._burst = self.left = burst
        self._per_s = per_s
        self._refilled_ns = time.monotonic_ns()

    def charge(self, what: str, count: int = 1) -> None:
        """Charge the peer for `count` glitches; `what` names what it sent. Raises Http2Error when the
        budget is spent.
        """
        self.left -= count
        if self.left >= 0:
            return
        now_ns = time.monotonic_ns()
        earned = (now_ns - self._refilled_ns) * self._per_s // 10**9
        self.left = min(self._burst, self.left + earned)
        if self.left < 0:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, f"too many {what}")
        self._refilled_ns = now_ns
