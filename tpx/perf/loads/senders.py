"""The parts that all loads of one process share: senders on connection slots, the rows and failures of
requests, and stopping.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable, Mapping, Set
from contextlib import suppress
from time import perf_counter_ns, thread_time_ns
from typing import Any

from tpx.errors import WireError
from tpx.perf.clients.base import (
    LOST,
    MISMATCH,
    TIMED_OUT,
    Check,
    Client,
    Failure,
    Prepared,
    Slot,
    ignore_loss,
)
from tpx.perf.inputs.feed import Feed, Source
from tpx.perf.records import SUCCESS, Records

LOOKS = 10
LONGEST_LOOK_S = 0.1
"""Number of checks for expired requests within one `--timeout`, and the maximum time between two checks."""
FIRST_RETRY_S, LAST_RETRY_S = 0.02, 1.0
REST_CHECK_S = 0.01
"""Interval at which a stopped load ends the sequences of idle senders."""
_CODES = {LOST: "connection lost", TIMED_OUT: "timeout", MISMATCH: "output mismatch"}


class Sender:
    """A connection slot with at most one request in flight.

    Methods called for each request are kept as attributes, which saves Python the lookup in the class.
    """

    __slots__ = (
        "_append", "_call", "_load", "_next", "_on_response", "_plain", "_ready", "_request", "_resending",
        "_sent_ns", "_success", "intended_ns", "slot", "source", "start_ns",
    )  # fmt: skip

    def __init__(self, load: "SlotLoad", slot: Slot, source: Source) -> None:
        self._load = load
        self._ready = load.ready
        self._append = load.append
        self._success = load.success
        self._plain = self.on_streamed if load.client.streams else self.on_response
        self._on_response = self.on_checked if load.check else self._plain
        self._call: object = None
        self._request: Prepared = None
        self._resending: asyncio.Task[None] | None = None
        self._sent_ns = 0
        self.intended_ns = 0
        """Due time of the request in flight; 0 if it was due when it was sent."""
        self.slot = slot
        self.source = source
        self._next = source.next
        self.start_ns = 0
        """Time at which the request in flight was sent; 0 if there is none."""
        slot.on_lost = self.on_lost

    def send(self) -> None:
        """Send the next request of the source.

        Raises WireError if the connection was closed between two requests; the request is then put back
        and not counted.
        """
        send, request = self.slot.send, self._next()
        self._request = request
        self.start_ns = perf_counter_ns()
        try:
            self._call = send(request, self._on_response)
        except WireError:
            self.start_ns = 0
            self.source.take_back()
            raise
        self._sent_ns = perf_counter_ns()

    def on_response(self, response: Any) -> None:
        start_ns = self.start_ns
        if not start_ns:
            return  # a late response to an abandoned request
        self.start_ns = 0
        source = self.source
        self._append(
            start_ns,
            self.intended_ns or start_ns,
            self._sent_ns,
            response.first_byte_ns,
            response.end_ns,
            SUCCESS if response.status == self._success else self._count_failure(response),
            1,
            source.step,
            source.sequence,
        )
        self._ready(self)

    def on_streamed(self, response: Any) -> None:
        """Handle the last response, or the end of the stream, of a request that may have several."""
        start_ns = self.start_ns
        if not start_ns:
            return
        self.start_ns = 0
        source = self.source
        status, arrivals = SUCCESS, response.arrivals
        if response.status != self._success:
            status = self._count_failure(response)
        self._load.records.arrivals.extend(arrivals)
        self._append(
            start_ns,
            self.intended_ns or start_ns,
            self._sent_ns,
            response.first_byte_ns,
            response.end_ns,
            status,
            len(arrivals),
            source.step,
            source.sequence,
            response.units,
            *response.usage,
        )
        self._ready(self)

    def on_checked(self, response: object) -> None:
        """Pass a response to the check after the next request was sent."""
        if self.start_ns:
            step, row = self.source.step, len(self._load.records)
            self._plain(response)
            self._load.inspect(row, step, response)

    def on_lost(self, error: WireError) -> None:
        """Handle a broken connection: fail the request in flight, if any, or send it again.

        A server may close an idle connection just as a request is sent on it. Without a byte in answer, the
        request goes to a new connection (RFC 9110, 9.2.2), unless it belongs to a sequence: the server may
        have taken it for one step of that.
        """
        if not self.start_ns:
            return
        if self.slot.unanswered and not self.source.sequence:
            self._resending = self._load.resend(self)
        else:
            self.give_up(LOST, str(error))

    def send_again(self) -> None:
        """Send the request in flight on the renewed slot; it has taken time since it was first sent."""
        self._resending = None
        self._call = self.slot.send(self._request, self._on_response)

    def expire(self, before_ns: int) -> None:
        """Fail a request that was sent before `before_ns`."""
        if 0 < self.start_ns < before_ns:
            self.give_up(TIMED_OUT, "the request took longer than --timeout")

    def abandon(self) -> None:
        """Drop the request in flight without counting it."""
        if self.start_ns:
            self.start_ns = 0
            self._end_resending()
            self._load.lost(self, self._call)

    def give_up(self, status: int, message: str) -> None:
        """Count the request in flight as failed without a response."""
        now_ns, start_ns, source = perf_counter_ns(), self.start_ns, self.source
        step, sequence = source.step, source.sequence
        source.failed(sequence)
        self._load.count_local_failure(status, message)
        # _sent_ns is that of the previous request if the connection broke within send()
        sent_ns, intended_ns = max(self._sent_ns, start_ns), self.intended_ns or start_ns
        self._append(start_ns, intended_ns, sent_ns, now_ns, now_ns, status, 0, step, sequence)
        self.start_ns = 0
        self._end_resending()
        self._load.lost(self, self._call)

    def _end_resending(self) -> None:
        if self._resending is not None:
            self._resending.cancel()
            self._resending = None

    def _count_failure(self, response: Any) -> int:
        self.source.failed(self.source.sequence)
        return self._load.count_failure(response)


class SlotLoad(ABC):
    """The base of the Loads of one process; subclasses decide what is sent when.

    A request fails if it takes longer than `timeout_s` (0: no limit), or if its connection breaks.
    """

    skipped = 0

    def __init__(self, client: Client, feed: Feed, timeout_s: float = 0.0) -> None:
        self.client = client
        self.success = client.success
        self.check: Check | None = feed.check
        self.unfinished: Set[int] = feed.unfinished
        self.records = Records()
        self.append = self.records.append
        self.failed = 0
        self.resent = 0
        self._failures: dict[int, Failure] = {}
        self.senders: list[Sender] = []
        self.at_rest = asyncio.Event()
        """Set when nothing is in flight and nothing more will be sent."""
        self._renewals: set[asyncio.Task[None]] = set()
        self._timeout_s = timeout_s
        self._timer: asyncio.TimerHandle | None = None

    @property
    def processor_ns(self) -> int:
        return thread_time_ns()

    @property
    def connections(self) -> int:
        return len(self.senders)

    def failures(self) -> Mapping[int, Failure]:
        return dict(self._failures)

    async def finished(self) -> None:
        await self.at_rest.wait()

    async def settled(self, until_ns: int) -> None:  # noqa: B027 (optional to override)
        """Return at once: rows are appended as soon as requests end."""

    async def stop(self, patience_s: float) -> None:
        self.cease()
        try:
            async with asyncio.timeout(patience_s):
                while not self.at_rest.is_set():
                    # a request in flight may be waiting for a sequence slot that an idle sender holds
                    await self._end_sequences(patience_s)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(REST_CHECK_S):
                            await self.at_rest.wait()
        except TimeoutError:
            for sender in list(self.senders):
                sender.abandon()
        if self._timer is not None:
            self._timer.cancel()
        # slots must be usable again before their sequences can be ended
        if self._renewals:
            await asyncio.wait(self._renewals, timeout=patience_s)
        for task in self._renewals:
            task.cancel()
        await self._end_sequences(patience_s)
        for sender in self.senders:
            sender.slot.on_lost = ignore_loss

    async def _end_sequences(self, patience_s: float) -> None:
        idle = [sender for sender in self.senders if not sender.start_ns]
        await end_sequences(((sender.slot, sender.source) for sender in idle), patience_s)

    @abstractmethod
    def cease(self) -> None:
        """Stop sending new requests."""

    @abstractmethod
    def ready(self, sender: Sender) -> None:
        """Continue with a sender whose request has ended or whose slot was renewed."""

    @abstractmethod
    def refused(self, sender: Sender, error: WireError) -> bool:
        """Count a failed attempt to renew a slot. Return False to stop trying."""

    def lost(self, sender: Sender, call: object) -> None:
        """Renew the slot of an abandoned request, with a new sender that a late response cannot reach."""
        fresh = type(sender)(self, sender.slot, sender.source)
        self.senders[self.senders.index(sender)] = fresh
        self.renew(fresh, call)

    def renew(self, sender: Sender, call: object = None) -> None:
        """Renew a slot in the background, retrying until it works, then continue with its sender."""

        async def retry() -> None:
            pause_s = FIRST_RETRY_S
            while True:
                try:
                    await self.client.renew(sender.slot, call)
                    break
                except WireError as exc:
                    if not self.refused(sender, exc):
                        break
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, LAST_RETRY_S)
            self.ready(sender)

        self._begin_renewal(retry())

    def resend(self, sender: Sender) -> asyncio.Task[None]:
        """Send a sender's request again on a new connection, in the background; fail it if there is none."""

        async def again() -> None:
            try:
                await self.client.renew(sender.slot, None)
                sender.send_again()
            except WireError as exc:
                sender.give_up(LOST, str(exc))

        self.resent += 1
        return self._begin_renewal(again())

    def _begin_renewal(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._renewals.add(task)
        task.add_done_callback(self._renewals.discard)
        return task

    def append_refused(self, error: WireError, due_ns: int = 0) -> None:
        """Append the row of a request that was never sent, for lack of a connection; 0 means due now."""
        now_ns = perf_counter_ns()
        self.count_local_failure(LOST, str(error))
        self.append(now_ns, due_ns or now_ns, now_ns, now_ns, now_ns, LOST, 0)

    def inspect(self, row: int, step: int, response: Any) -> None:
        """Mark a row as failed if the check finds its successful response wrong."""
        if self.check is None or response.status != self.success:
            return
        wrong = self.check(row, step, response)
        if wrong:
            self.records.amend(row, MISMATCH)
            self.count_local_failure(MISMATCH, wrong)

    def count_failure(self, response: Any) -> int:
        """Count an unsuccessful response and return its status."""
        self.failed += 1
        status = int(response.status)
        if status not in self._failures:
            self._failures[status] = self.client.failure(response)
        return status

    def count_local_failure(self, status: int, message: str) -> None:
        """Count a failure that the client detected itself."""
        self.failed += 1
        self._failures.setdefault(status, Failure(_CODES.get(status, "incomplete"), message))

    def watch(self) -> None:
        """Check for expired requests now and then, if there is a timeout."""
        if self._timeout_s:
            before_ns = perf_counter_ns() - int(self._timeout_s * 1e9)
            for sender in list(self.senders):
                sender.expire(before_ns)
            pause_s = min(self._timeout_s / LOOKS, LONGEST_LOOK_S)
            self._timer = asyncio.get_running_loop().call_later(pause_s, self.watch)


async def end_sequences(sources: Iterable[tuple[Slot, Source]], patience_s: float) -> None:
    """Send the request that ends each open sequence on the server; these are not counted."""

    async def end(slot: Slot, request: Prepared) -> None:
        answered = asyncio.Event()
        slot.on_lost = lambda _: answered.set()
        # without an answer, the server drops the sequence after its idle timeout
        with suppress(WireError, TimeoutError):
            slot.send(request, lambda _: answered.set())
            async with asyncio.timeout(patience_s):
                await answered.wait()

    closings = [(slot, request) for slot, source in sources if (request := source.closing()) is not None]
    await asyncio.gather(*(end(slot, request) for slot, request in closings))
