"""Closed loops of users: of requests, with think times or without, and of conversations."""

import asyncio
from abc import abstractmethod
from collections.abc import Iterator, Sequence, Set
from typing import cast

import numpy as np

from tpx.errors import WireError
from tpx.perf.clients.base import Client, Prepared, Slot
from tpx.perf.inputs.feed import ALL, Conversation, Feed, Share
from tpx.perf.inputs.requests import Requests
from tpx.perf.levels import Level, level_seed
from tpx.perf.loads.base import Loadable, LoadRequest
from tpx.perf.loads.closed import ClosedLoop
from tpx.perf.loads.senders import Sender
from tpx.perf.settings import LevelSettings


async def open_requests(target: Loadable, load_request: LoadRequest) -> ClosedLoop:
    """Open a level's requests in flight, or one worker's share of them."""
    slots = await target.client.open(load_request.share.part(int(load_request.level.value)))
    settings, feed = load_request.settings, target.requests.feed
    if settings.pace.ramp_seconds or settings.pace.think_time:
        seed = level_seed(settings.seed, load_request.level).spawn(load_request.share.of)
        rng = np.random.default_rng(seed[load_request.share.number])
        return UserLoad(target.client, slots, feed, settings, rng)
    return ClosedLoop(target.client, slots, feed, settings.timeout_s)


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
