"""Busy polling: the event loop looks for the next request for a moment before it sleeps.

A lone client sends its next request as soon as it has the response. To sleep and be woken in between costs
about as much CPU as to poll that long, takes longer, and in a virtual machine leaves the caches to others:
polling brought 1.37 to 1.43 times the requests over HTTP at 0.92 to 0.97 of the CPU, with 1 in flight.
Polls that find nothing cost CPU for nothing, so whether to poll follows the latest gaps, as in KVM's halt
polling (Linux, Documentation/virt/kvm/halt-polling.rst).
"""

import time
from collections.abc import Callable

from tpx.processors import usable_processors

_PROCESSORS = 2
"""Processors that polling needs: on a single one the client would wait for it."""
_TRUSTED = 8
"""Requests in a row that must come soon before the loop polls."""
_FEW = 8
"""Maximum number of requests without a gap between them that the loop polls after. With more, the gap that
follows is a small part of the time: polling after rounds of 16 on one gRPC connection took 1.2 times the CPU
per request for 0.98 to 1.05 of the requests, after rounds of up to 8 it brings 1.14 to 1.9 times as many.
"""
_GAP_NS = 10_000
"""Minimum time between requests that were not read together."""


class BusyPolling:
    """Keeps the event loop polling between requests that follow each other closely, to any model."""

    __slots__ = ("_call_soon", "_clock", "_ended_ns", "_poll_ns", "_polling", "_score", "_together", "polls")

    def __init__(
        self,
        poll_ns: int,
        call_soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """Poll for up to `poll_ns` after a response; 0 never polls. `call_soon` is the event loop's."""
        self._poll_ns = poll_ns
        self._call_soon = call_soon
        self._clock = clock
        self._ended_ns = 0
        self._score = 0
        self._together = 0
        self._polling = False
        self.polls = 0
        """Number of times that polling began."""

    def computed(self, started_ns: int, ended_ns: int, requests: int = 1) -> None:
        """Note computed requests whose responses are about to be sent: poll if few follow closely."""
        gap_ns = started_ns - self._ended_ns
        self._ended_ns = ended_ns
        self._together = requests if gap_ns > _GAP_NS else self._together + requests
        # twice: without polling the gap includes the time to wake up
        if gap_ns > 2 * self._poll_ns or self._together > _FEW:
            self._score = 0
        elif self._score < _TRUSTED:
            self._score += 1
        elif self._poll_ns and not self._polling:
            self._polling = True
            self.polls += 1
            self._call_soon(self._poll)

    def _poll(self) -> None:
        """Run once per iteration of the loop, which does not sleep while callbacks are due."""
        if self._clock() - self._ended_ns < self._poll_ns:
            self._call_soon(self._poll)
        else:
            self._polling = False
            self._score = 0


NO_POLLING = BusyPolling(0, lambda _: None)


def polling_time_ns(busy_poll_us: int) -> int:
    """Return the time to poll with `--busy-poll-us`: 0 where polling would delay the client."""
    return busy_poll_us * 1000 if usable_processors() >= _PROCESSORS else 0
