"""Closed loops: of requests, users and conversations, where each response triggers the next request, and a
concurrency that grows with the responses.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Iterator, Sequence, Set
from typing import Any, cast

import numpy as np

from tpx.errors import WireError
from tpx.perf.clients.base import Client, Prepared, Slot
from tpx.perf.inputs.feed import ALL, Conversation, Feed, Share, Source
from tpx.perf.inputs.requests import Requests
from tpx.perf.levels import Level, PeriodicRange, level_seed
from tpx.perf.loads.base import Loadable, LoadRequest
from tpx.perf.loads.senders import Sender, SlotLoad
from tpx.perf.settings import LevelSettings

UNLIMITED = 1 << 62


async def open_requests(target: Loadable, load_request: LoadRequest) -> "ClosedLoop":
    """Open a level's requests in flight, or one worker's share of them."""
    slots = await target.client.open(load_request.share.part(int(load_request.level.value)))
    settings, feed = load_request.settings, target.requests.feed
    if settings.pace.ramp_seconds or settings.pace.think_time:
        seed = level_seed(settings.seed, load_request.level).spawn(load_request.share.of)
        rng = np.random.default_rng(seed[load_request.share.number])
        return UserLoad(target.client, slots, feed, settings, rng)
    return ClosedLoop(target.client, slots, feed, settings.timeout_s)


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


class PacedLoop(ClosedLoop):
    """A closed loop whose slots may pause before a request."""

    def __init__(self, client: Client, slots: Sequence[Slot], feed: Feed, timeout_s: float = 0.0) -> None:
        super().__init__(client, slots, feed, timeout_s)
        self._pauses: dict[Sender, asyncio.TimerHandle] = {}

    @abstractmethod
    def pause_s(self, sender: Sender) -> float:
        """Return the time before a sender's next request."""

    def cease(self) -> None:
        super().cease()
        for sender, pause in list(self._pauses.items()):
            pause.cancel()
            self._resume_sender(sender)  # goes idle, since the allowance is 0

    def ready(self, sender: Sender) -> None:
        """Send the next request when its pause is over."""
        if self.allowance > 0 and (pause_s := self.pause_s(sender)) > 0:
            loop = asyncio.get_running_loop()
            self._pauses[sender] = loop.call_later(pause_s, self._resume_sender, sender)
        else:
            super().ready(sender)

    def _resume_sender(self, sender: Sender) -> None:
        del self._pauses[sender]
        super().ready(sender)


class UserLoad(PacedLoop):
    """Implements Load: users who begin one after another and think between a response and the next request.

    They begin over the ramp, or over one think time: together they would send in bursts.
    """

    def __init__(
        self,
        client: Client,
        slots: Sequence[Slot],
        feed: Feed,
        settings: LevelSettings,
        rng: np.random.Generator,
    ) -> None:
        super().__init__(client, slots, feed, settings.timeout_s)
        self._think, self._rng = settings.pace.think_time, rng
        over_s = settings.pace.ramp_seconds or (self._think.mean_s if self._think else 0.0)
        self._next_s = {sender: over_s * i / len(slots) for i, sender in enumerate(self.senders)}
        """Pauses that are no think time."""

    def pause_s(self, sender: Sender) -> float:
        next_s = self._next_s.pop(sender, None)
        if next_s is not None:
            return next_s
        return self._think.draw_s(self._rng) if self._think else 0.0

    def renew(self, sender: Sender, call: object = None) -> None:
        self._next_s[sender] = 0.0  # the user has waited already
        super().renew(sender, call)


async def open_sessions(target: Loadable, load_request: LoadRequest) -> "SessionLoad":
    """Open a level's concurrent conversations."""
    slots = await target.client.open(int(load_request.level.value))
    return SessionLoad(target.client, slots, target.requests, load_request.settings.timeout_s)


class _Conversations:
    """Implements Feed: each slot takes the next conversation that has not begun."""

    unfinished: Set[int] = frozenset()

    def __init__(self, requests: Requests) -> None:
        self.check = requests.feed.check
        self._left = iter(requests.conversations)

    def begin(self, level: Level, share: Share = ALL) -> None:
        """Do nothing: conversations begin in order at every level."""

    def source(self, slot: int) -> "_Turns":  # noqa: ARG002 (all slots share one iterator)
        return _Turns(self._left)


class _Turns:
    """Implements Source: the turns of one conversation after another."""

    __slots__ = ("_at", "_conversation", "_left", "delay_ns", "sequence", "step")

    def __init__(self, left: Iterator[Conversation]) -> None:
        self._left = left
        self._conversation: Conversation = ()
        self._at = 0
        self.delay_ns = 0
        """Delay after the last turn, before the next one is due."""
        self.step = 0
        self.sequence = 0

    def has_next(self) -> bool:
        """Begin another conversation if the current one is over. Return False if none is left."""
        if self._at == len(self._conversation):
            self._conversation, self._at, self.delay_ns = next(self._left, ()), 0, 0
        return bool(self._conversation)

    def next(self) -> Prepared:
        turn = self._conversation[self._at]
        self._at += 1
        self.step = turn.step
        self.delay_ns = turn.delay_ns
        return turn.request

    def take_back(self) -> None:
        self._at -= 1
        self.delay_ns = 0

    def failed(self, sequence: int) -> None:  # noqa: ARG002 (a slot has one conversation)
        self._at = len(self._conversation)

    def closing(self) -> None:
        """Do nothing: the service holds no state between two turns."""


class SessionLoad(PacedLoop):
    """Implements Load: one conversation per slot at a time.

    A turn is sent once the previous one has its response and that turn's delay is over. When a
    conversation ends, the next one begins; each is held once. A failed turn ends its conversation,
    because later turns depend on its response. In perf_analyzer a failed turn ends the whole run:
    session_concurrency_manager.cc.
    """

    def __init__(
        self, client: Client, slots: Sequence[Slot], requests: Requests, timeout_s: float = 0.0
    ) -> None:
        super().__init__(client, slots, _Conversations(requests), timeout_s)

    def pause_s(self, sender: Sender) -> float:
        return cast("_Turns", sender.source).delay_ns / 1e9

    def ready(self, sender: Sender) -> None:
        """Send the next turn when its delay is over, or go idle if no conversation is left."""
        if cast("_Turns", sender.source).has_next():
            super().ready(sender)
        else:
            self.rest()

    def refused(self, sender: Sender, error: WireError) -> bool:
        """Record the turn that could not be sent as failed, which ends its conversation."""
        turns = cast("_Turns", sender.source)
        if not turns.has_next() or not super().refused(sender, error):
            return False
        turns.failed(0)
        return turns.has_next()


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
