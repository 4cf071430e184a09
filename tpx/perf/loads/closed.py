"""Closed loops of requests, of conversations and of queries: what is answered is replaced by the next one."""

import asyncio
from collections.abc import Iterator, Sequence, Set
from time import perf_counter_ns
from typing import Any, cast

import numpy as np

from tpx.errors import WireError
from tpx.perf.clients.base import MISMATCH, Client, Prepared, Slot
from tpx.perf.inputs.feed import Check, Conversation, Feed, Source
from tpx.perf.levels import Level
from tpx.perf.loads.base import Loadable, LoadRequest
from tpx.perf.loads.senders import Sender, SlotLoad
from tpx.perf.plan import ALL, Share
from tpx.perf.records import SUCCESS, Rows, succeeded
from tpx.perf.results import Sessions

UNLIMITED = 1 << 62


async def open_requests(target: Loadable, asked: LoadRequest) -> "ClosedLoop":
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


async def open_queries(target: Loadable, asked: LoadRequest) -> "QueryLoad":
    """A level's queries, of MLPerf's MultiStream; its value is how many requests each has."""
    slots = await target.client.open(int(asked.level.value))
    return QueryLoad(target.client, slots, target.feed, asked.settings.timeout_s)


class _PartSender(Sender):
    """Sends one request of each query; its row is the query's."""

    __slots__ = ("_query_load",)

    def __init__(self, load: "QueryLoad", slot: Slot, source: Source) -> None:
        super().__init__(load, slot, source)
        self._query_load = load
        self._on_response = self._answered

    def give_up(self, status: int, message: str) -> None:
        self._query_load.failed_part(status, message)
        self.abandon()
        self._query_load.one_less()

    def _answered(self, response: object) -> None:
        if self.start_ns:
            self.start_ns = 0
            self._query_load.answered(self, response)


class QueryLoad(SlotLoad):
    """Implements Load: one query in flight, of a request on each of `slots`. A row is a query: it ends with
    its last answer, and has failed where one of its requests has."""

    def __init__(self, client: Client, slots: Sequence[Slot], feed: Feed, timeout_s: float = 0.0) -> None:
        super().__init__(client, feed, timeout_s)
        self.senders += [_PartSender(self, slot, feed.source(i)) for i, slot in enumerate(slots)]
        self._left = 0
        self._missing = 0
        """Requests of the query that are not over."""
        self._renewing = 0
        self._unsent: set[Sender] = set()
        """Senders whose connection was closed before they could send."""
        self._start_ns = self._sent_ns = self._first_ns = 0
        self._status = SUCCESS
        self.at_rest.set()

    def start(self, count: int | None = None, origin_ns: int = 0) -> None:  # noqa: ARG002 (begins at once)
        self._left = UNLIMITED if count is None else count
        self.at_rest.clear()
        self._next()
        self.watch()

    def cease(self) -> None:
        self._left = 0

    def answered(self, sender: Sender, response: Any) -> None:
        """One of the query's requests has its answer."""
        if not self._first_ns:
            self._first_ns = response.first_byte_ns
        check, source = self.check, sender.source
        if self._status == SUCCESS and response.status != self.success:
            source.failed(source.sequence)
            self._status = self.count_failure(response)
        elif self._status == SUCCESS and check is not None and (wrong := check(source.step, response)):
            self.failed_part(MISMATCH, wrong)
        self.one_less()

    def failed_part(self, status: int, message: str) -> None:
        """One of the query's requests has failed; the first failure is the query's."""
        if self._status == SUCCESS:
            self._status = status
            self.count_local_failure(status, message)

    def one_less(self) -> None:
        """One of the query's requests is over; the next query follows the last."""
        self._missing -= 1
        if self._missing:
            return
        end_ns = perf_counter_ns()
        start_ns, count = self._start_ns, len(self.senders)
        self.append(start_ns, start_ns, self._sent_ns, self._first_ns or end_ns, end_ns, self._status, count)
        self._next()

    def ready(self, sender: Sender) -> None:
        """Go on when a slot is renewed: send its part, or the next query if that waits for the slot."""
        self._renewing -= 1
        if self.at_rest.is_set():
            return
        if sender in self._unsent:
            self._unsent.discard(sender)
            self._send(sender)
        elif not self._missing:
            self._next()

    def renew(self, sender: Sender, call: object = None) -> None:
        self._renewing += 1
        super().renew(sender, call)

    def refused(self, sender: Sender, error: WireError) -> bool:  # noqa: ARG002 (all slots are alike)
        """A server that takes no connection costs a query an attempt."""
        if self._left <= 0:
            self.at_rest.set()
            return False
        self._left -= 1
        self.append_refused(error)
        return True

    def _next(self) -> None:
        """Send the next query, once every slot is there."""
        if self._renewing:
            return
        if self._left <= 0:
            self.at_rest.set()
            return
        self._left -= 1
        self._status, self._first_ns = SUCCESS, 0
        self._missing = len(self.senders)
        self._start_ns = perf_counter_ns()
        for sender in list(self.senders):
            self._send(sender)
        self._sent_ns = perf_counter_ns()

    def _send(self, sender: Sender) -> None:
        try:
            sender.send()
        except WireError:
            self._unsent.add(sender)
            self.renew(sender)


async def open_sessions(target: Loadable, asked: LoadRequest) -> "SessionLoad":
    """A level's conversations at a time."""
    slots = await target.client.open(int(asked.level.value))
    return SessionLoad(target.client, slots, target.conversations, asked.settings.timeout_s)


class _Conversations:
    """Implements Feed: a slot takes the next conversation that no other one has begun."""

    check: Check | None = None
    unfinished: Set[int] = frozenset()

    def __init__(self, conversations: Sequence[Conversation]) -> None:
        self._left = iter(conversations)

    def begin(self, level: Level, share: Share = ALL) -> None:
        """Conversations are begun in their order."""

    def source(self, slot: int) -> "_Turns":  # noqa: ARG002 (all take from the same)
        return _Turns(self._left)


class _Turns:
    """Implements Source."""

    __slots__ = ("_at", "_conversation", "_left", "delay_ns", "sequence", "step")

    def __init__(self, left: Iterator[Conversation]) -> None:
        self._left = left
        self._conversation: Conversation = ()
        self._at = 0
        self.delay_ns = 0
        """The delay of the last turn, after which the next one is due."""
        self.step = 0
        self.sequence = 0

    def has_next(self) -> bool:
        """Begin another conversation where one is over; False where none is left."""
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
        """A service keeps nothing between two turns."""


class SessionLoad(ClosedLoop):
    """Implements Load: as many of the conversations at a time as there are slots.

    A turn leaves when the one before it is answered and that one's delay is over; when a conversation ends
    the next one begins, each once. A turn that fails ends its conversation, because what would follow depends
    on its answer. perf_analyzer: session_concurrency_manager.cc, where the whole run ends with it.
    """

    def __init__(
        self,
        client: Client,
        slots: Sequence[Slot],
        conversations: Sequence[Conversation],
        timeout_s: float = 0.0,
    ) -> None:
        super().__init__(client, slots, _Conversations(conversations), timeout_s)
        self._pauses: dict[Sender, asyncio.TimerHandle] = {}

    def cease(self) -> None:
        super().cease()
        for sender, pause in list(self._pauses.items()):
            pause.cancel()
            self._resume(sender)

    def ready(self, sender: Sender) -> None:
        """Send the next turn when its delay is over, or rest where no conversation is left."""
        turns = cast("_Turns", sender.source)
        if not turns.has_next():
            self.rest()
        elif turns.delay_ns and self.allowance > 0:
            delay_s = turns.delay_ns / 1e9
            self._pauses[sender] = asyncio.get_running_loop().call_later(delay_s, self._resume, sender)
        else:
            super().ready(sender)

    def refused(self, sender: Sender, error: WireError) -> bool:
        """An attempt to renew a slot has failed, and with it the turn that was to be sent."""
        turns = cast("_Turns", sender.source)
        if not turns.has_next() or not super().refused(sender, error):
            return False
        turns.failed(0)
        return turns.has_next()

    def _resume(self, sender: Sender) -> None:
        del self._pauses[sender]
        super().ready(sender)


def session_figures(rows: Rows, conversations: Sequence[Conversation]) -> Sessions:
    """Count finished conversations and unsent turns; every turn that was due has its row."""
    last = [turns[-1].step for turns in conversations]
    return Sessions(
        total=len(conversations),
        finished=int(np.isin(last, succeeded(rows)["step"]).sum()),
        unsent_turns=sum(map(len, conversations)) - len(rows),
    )
