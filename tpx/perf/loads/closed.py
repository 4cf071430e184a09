"""A closed loop: a fixed number of requests in flight, each answered one replaced at once."""

from collections.abc import Sequence

from tpx.errors import WireError
from tpx.perf.clients.base import Client, Slot
from tpx.perf.inputs.feed import Feed
from tpx.perf.loads.base import Loadable, LoadRequest
from tpx.perf.loads.senders import Sender, SlotLoad

UNLIMITED = 1 << 62


async def open_load(target: Loadable, asked: LoadRequest) -> "ClosedLoop":
    """A level's requests in flight, or one worker's share of them."""
    slots = await target.client.open(asked.share.part(int(asked.level.value)))
    return ClosedLoop(target.client, slots, target.feed, asked.settings.timeout_s)


class ClosedLoop(SlotLoad):
    """Implements Load: `len(slots)` requests in flight, each slot sending what its source of `feed` gives."""

    def __init__(self, client: Client, slots: Sequence[Slot], feed: Feed, timeout_s: float = 0.0) -> None:
        super().__init__(client, feed, timeout_s)
        self.allowance = 0
        """How many further requests may be sent."""
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
        """Send the next request, or rest where no more may be sent."""
        left = self.allowance
        if left <= 0:
            self.rest()
            return
        self.allowance = left - 1
        try:
            sender.send()
        except WireError:
            self.allowance += 1
            self.renew(sender)

    def rest(self) -> None:
        """Count a sender that sends nothing more."""
        self._resting += 1
        if self._resting == len(self.senders):
            self.at_rest.set()

    def refused(self, sender: Sender, error: WireError) -> bool:  # noqa: ARG002 (all slots are alike)
        """Every attempt to renew a slot that fails is a failed request."""
        if self.allowance <= 0:
            return False
        self.allowance -= 1
        self.append_refused(error)
        return True
