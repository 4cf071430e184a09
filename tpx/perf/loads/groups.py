"""Loads that send several requests at once: MLPerf's queries, and a concurrency that grows.

In MLPerf's MultiStream scenario a query of several requests follows the last response of the one before.
A periodic concurrency begins with some requests. Once each request of the latest step has had a given
number of responses, the next step is sent, until the end of the range is reached. Finished requests are
not replaced. perf_analyzer: periodic_concurrency_manager.cc, which stops before or beyond the end if the
start differs from the step.
"""

from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any, cast

from tpx.errors import WireError
from tpx.perf.clients.base import MISMATCH, Client, Slot
from tpx.perf.inputs.feed import Feed, Source
from tpx.perf.levels import PeriodicRange
from tpx.perf.loads.base import Loadable, LoadRequest
from tpx.perf.loads.closed import UNLIMITED
from tpx.perf.loads.senders import Sender, SlotLoad
from tpx.perf.records import SUCCESS


async def open_queries(target: Loadable, asked: LoadRequest) -> "QueryLoad":
    """Open a level's queries; its value is the number of requests per query."""
    slots = await target.client.open(int(asked.level.value))
    return QueryLoad(target.client, slots, target.requests.feed, asked.settings.timeout_s)


class _PartSender(Sender):
    """Sends one request of each query; the row is recorded for the whole query."""

    __slots__ = ("_query_load",)

    def __init__(self, load: "QueryLoad", slot: Slot, source: Source) -> None:
        super().__init__(load, slot, source)
        self._query_load = load
        self._on_response = self._report_response

    def give_up(self, status: int, message: str) -> None:
        self._query_load.failed_part(status, message)
        self.abandon()
        self._query_load.one_less()

    def _report_response(self, response: object) -> None:
        if self.start_ns:
            self.start_ns = 0
            self._query_load.answered(self, response)


class QueryLoad(SlotLoad):
    """Implements Load: one query in flight, with one request on each of `slots`.

    A row is a query: it ends with the last response, and is failed if any of its requests failed.
    """

    def __init__(self, client: Client, slots: Sequence[Slot], feed: Feed, timeout_s: float = 0.0) -> None:
        super().__init__(client, feed, timeout_s)
        self.senders += [_PartSender(self, slot, feed.source(i)) for i, slot in enumerate(slots)]
        self._left = 0
        self._missing = 0
        """Requests of the current query that have not ended."""
        self._renewing = 0
        self._unsent: set[Sender] = set()
        """Senders whose connection was closed before they could send."""
        self._start_ns = self._sent_ns = self._first_ns = 0
        self._status = SUCCESS
        self.at_rest.set()

    def start(self, count: int | None = None, origin_ns: int = 0) -> None:  # noqa: ARG002 (begins at once)
        self._left = UNLIMITED if count is None else count
        self.at_rest.clear()
        self._send_query()
        self.watch()

    def cease(self) -> None:
        self._left = 0

    def answered(self, sender: Sender, response: Any) -> None:
        """Handle the response to one of the query's requests."""
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
        """Record the failure of one of the query's requests; the first failure sets the query's status."""
        if self._status == SUCCESS:
            self._status = status
            self.count_local_failure(status, message)

    def one_less(self) -> None:
        """Count a finished request; after the query's last, record the row and send the next query."""
        self._missing -= 1
        if self._missing:
            return
        end_ns = perf_counter_ns()
        start_ns, count = self._start_ns, len(self.senders)
        self.append(start_ns, start_ns, self._sent_ns, self._first_ns or end_ns, end_ns, self._status, count)
        self._send_query()

    def ready(self, sender: Sender) -> None:
        """Send a renewed slot's request, or the next query if it waits for the slot."""
        self._renewing -= 1
        if self.at_rest.is_set():
            return
        if sender in self._unsent:
            self._unsent.discard(sender)
            self._send(sender)
        elif not self._missing:
            self._send_query()

    def renew(self, sender: Sender, call: object = None) -> None:
        self._renewing += 1
        super().renew(sender, call)

    def refused(self, sender: Sender, error: WireError) -> bool:  # noqa: ARG002 (all slots are alike)
        """Record each refused connection as a failed query."""
        if self._left <= 0:
            self.at_rest.set()
            return False
        self._left -= 1
        self.append_refused(error)
        return True

    def _send_query(self) -> None:
        """Send the next query once every slot is available."""
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


EARLY = -3
"""Status of a request whose stream ended before it had the responses of a period."""


async def open_periodic(target: Loadable, asked: LoadRequest) -> "PeriodicLoad":
    """Open a growing concurrency that ends at the level's value."""
    end = int(asked.level.value)
    plan = asked.settings.periodic or PeriodicRange(start=end, end=end)
    slots = await target.client.open(end)
    return PeriodicLoad(target.client, slots, target.requests.feed, plan, asked.settings.timeout_s)


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
    """Implements Load; `slots` has one slot per request at the end of the range."""

    def __init__(
        self,
        client: Client,
        slots: Sequence[Slot],
        feed: Feed,
        plan: PeriodicRange,
        timeout_s: float = 0.0,
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
