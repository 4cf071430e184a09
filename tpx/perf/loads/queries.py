"""A closed loop of queries: several requests are sent at once, and the next query follows the last
response.

This is MLPerf's MultiStream scenario.
"""

from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any

from tpx.errors import WireError
from tpx.perf.clients.base import MISMATCH, Client, Slot
from tpx.perf.inputs.feed import Feed, Source
from tpx.perf.loads.base import Loadable, LoadRequest
from tpx.perf.loads.closed import UNLIMITED
from tpx.perf.loads.senders import Sender, SlotLoad
from tpx.perf.records import SUCCESS


async def open_load(target: Loadable, asked: LoadRequest) -> "QueryLoad":
    """Open a level's queries; its value is the number of requests per query."""
    slots = await target.client.open(int(asked.level.value))
    return QueryLoad(target.client, slots, target.feed, asked.settings.timeout_s)


class _PartSender(Sender):
    """Sends one request of each query; the row is recorded for the whole query."""

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
        self._next()
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
        self._next()

    def ready(self, sender: Sender) -> None:
        """Send a renewed slot's request, or the next query if it waits for the slot."""
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
        """Record each refused connection as a failed query."""
        if self._left <= 0:
            self.at_rest.set()
            return False
        self._left -= 1
        self.append_refused(error)
        return True

    def _next(self) -> None:
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
