"""Closed loops: each response triggers the next request, or a concurrency grows with the responses."""

from collections.abc import Sequence
from typing import Any, cast

from tpx.errors import WireError
from tpx.perf.clients.base import Client, Slot
from tpx.perf.inputs.feed import Feed, Source
from tpx.perf.levels import PeriodicRange
from tpx.perf.loads.base import Loadable, LoadRequest
from tpx.perf.loads.senders import Sender, SlotLoad

UNLIMITED = 1 << 62


class ClosedLoop(SlotLoad):
    """Implements Load: `len(slots)` requests in flight. Each slot sends the requests of its own source."""

    def __init__(self, client: Client, slots: Sequence[Slot], feed: Feed, timeout_s: float = 0.0) -> None:
        super().__init__(client, feed, timeout_s)
        self.allowance = 0
        """Requests that may still be sent."""
        self.senders = [Sender(self, slot, feed.source(i)) for i, slot in enumerate(slots)]
        self._resting = len(self.senders)
        self.at_rest.set()

    def start(self, count: int | None = None, origin_ns: int = 0) -> None:  # noqa: ARG002 (begins at once)
        self.allowance = UNLIMITED if count is None else count
        self._resting = 0
        self.at_rest.clear()
        for sender in self.senders:
            self.ready(sender)
        self.watch()

    def cease(self) -> None:
        self.allowance = 0

    def ready(self, sender: Sender) -> None:
        """Send the next request, or go idle if no more may be sent."""
        left = self.allowance
        if left <= 0:
            self.rest()
            return
        self.allowance = left - 1
        try:
            sender.send()
        except WireError:
            # nothing was sent: the request follows once the slot is renewed
            self.allowance += 1
            self.renew(sender)

    def rest(self) -> None:
        """Count a sender that sends no more requests."""
        self._resting += 1
        if self._resting == len(self.senders):
            self.at_rest.set()

    def refused(self, sender: Sender, error: WireError) -> bool:  # noqa: ARG002 (all slots are alike)
        """Record each failed attempt to renew a slot as a failed request."""
        if self.allowance <= 0:
            return False
        self.allowance -= 1
        self.append_refused(error)
        return True


EARLY = -3
"""Status of a request whose stream ended before it had the responses of a period."""


async def open_periodic(target: Loadable, load_request: LoadRequest) -> "PeriodicLoad":
    """Open a growing concurrency that ends at the level's value."""
    end = int(load_request.level.value)
    plan = load_request.settings.periodic or PeriodicRange(start=end, end=end)
    slots = await target.client.open(end)
    return PeriodicLoad(target.client, slots, target.requests.feed, plan, load_request.settings.timeout_s)


class _StreamSender(Sender):
    """Sends one request and counts its responses."""

    __slots__ = ("left", "period")

    def __init__(self, load: "PeriodicLoad", slot: Slot, source: Source) -> None:
        super().__init__(load, slot, source)
        self._plain, self._on_response = self.on_streamed, self._on_end
        self.period = self.left = load.plan.period
        """Responses required before the next step: in total, and still missing."""

    def key(self) -> tuple[int, object]:
        """Return the key that identifies its request among those of all senders."""
        return id(self.slot.connection), self._call

    def _on_end(self, response: Any) -> None:
        count = len(response.arrivals)
        if self.start_ns and count < self.period and response.status == self._success:
            self.give_up(EARLY, f"the stream ended after {count} responses: --request-period wants more")
        else:
            self.on_checked(response)


class PeriodicLoad(SlotLoad):
    """Implements Load; `slots` has one slot per request at the end of the range.

    Once each request of the latest step has had a given number of responses, the next step is sent, until
    the end of the range is reached. Finished requests are not replaced. perf_analyzer:
    periodic_concurrency_manager.cc, which stops before or beyond the end if the start differs from the step.
    """

    def __init__(
        self, client: Client, slots: Sequence[Slot], feed: Feed, plan: PeriodicRange, timeout_s: float = 0.0
    ) -> None:
        super().__init__(client, feed, timeout_s)
        self.plan = plan
        self._streams = [_StreamSender(self, slot, feed.source(i)) for i, slot in enumerate(slots)]
        self.senders += self._streams
        self._by_key: dict[tuple[int, object], _StreamSender] = {}
        self._sent = self._over = 0
        self._behind = 0
        """Requests of the latest step that still lack responses."""
        self._stopped = False

    def start(self, count: int | None = None, origin_ns: int = 0) -> None:  # noqa: ARG002 (all, at once)
        for sender in self.senders:
            sender.slot.connection.on_arrival = self._count_response
        self._send(self.plan.start)
        self.watch()

    async def stop(self, patience_s: float) -> None:
        await super().stop(patience_s)
        for sender in self.senders:
            sender.slot.connection.on_arrival = None

    def cease(self) -> None:
        self._stopped = True
        self._notice_rest()

    def ready(self, sender: Sender) -> None:
        """Count a finished request. The last one of the latest step triggers the next step."""
        stream = cast("_StreamSender", sender)
        self._over += 1
        self._by_key.pop(stream.key(), None)
        if stream.left > 0:
            stream.left = 0
            self._finish_period()
        self._notice_rest()

    def lost(self, sender: Sender, call: object) -> None:
        """Do not replace a failed request; cancel one that is still in flight at the end."""
        if self._stopped:
            self.renew(sender, call)
        else:
            self.ready(sender)

    def refused(self, sender: Sender, error: WireError) -> bool:  # noqa: ARG002 (nothing is sent again)
        return False

    def _finish_period(self) -> None:
        self._behind -= 1
        if not self._behind and not self._stopped:
            self._send(min(self.plan.step, len(self._streams) - self._sent))

    def _send(self, count: int) -> None:
        fresh = self._streams[self._sent : self._sent + count]
        self._sent += len(fresh)
        self._behind = len(fresh)
        for sender in fresh:
            try:
                sender.send()
            except WireError as exc:
                self.append_refused(exc)
                self.ready(sender)
            else:
                self._by_key[sender.key()] = sender

    def _count_response(self, connection: object, call: object) -> None:
        sender = self._by_key.get((id(connection), call))
        if sender is not None:
            sender.left -= 1
            if not sender.left:
                self._finish_period()

    def _notice_rest(self) -> None:
        if self._over == self._sent and (self._stopped or self._sent == len(self._streams)):
            self.at_rest.set()
