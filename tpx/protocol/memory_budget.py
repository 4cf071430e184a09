"""Memory budget for the requests and responses that a server holds, across all connections.

Charged are: bodies and messages larger than one read, until they are responded to; messages that wait
unread; copies of tensors in shared memory, until they are freed; responses that wait to be encoded, or
that clients have not read. A connection may hold at most what is still free, so that greedy ones leave
memory to others; a small request of a connection that holds nothing is always served.
"""

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tpx.errors import Cancelled, Overloaded, TpxError
from tpx.protocol.tensors import Array

log = logging.getLogger(__name__)

SMALL_BYTES = 16 << 10
"""Maximum size of a request that need not wait for memory; the number of connections bounds them all."""
_RELIEVED = 7 / 8
"""Fraction of the budget that may stay in use after responses were dropped."""
_ANSWERS_SPARED = 5 / 4
"""Fraction of the budget above which even responses that clients are reading are dropped, and those that
would have to wait are refused.
"""


class AccountHolder(Protocol):
    """Connection that holds memory."""

    @property
    def reads(self) -> bool:
        """True if its client has read some of its pending responses in the last seconds."""

    def drop_answers(self) -> None:
        """Fail the requests whose responses the client does not read, and drop these."""

    def drop_silent_requests(self) -> None:
        """Refuse the requests that have stalled midway."""


@dataclass(slots=True, eq=False)
class Account:
    """Bytes that one connection holds."""

    budget: "MemoryBudget"
    holder: AccountHolder
    requests: int = 0
    answers: int = 0

    @property
    def held(self) -> int:
        """Bytes of its requests and responses."""
        return self.requests + self.answers

    @property
    def full(self) -> bool:
        """True if the connection holds so much that its next request must wait."""
        held = self.held
        return held > 0 and held > self.budget.limit_bytes - self.budget.held

    def hold_request(self, size: int) -> None:
        """Charge bytes of requests; negative releases them."""
        self.requests += size
        self.budget.take(size)

    def hold_answer(self, size: int) -> None:
        """Charge bytes of responses; negative releases them."""
        self.answers += size
        self.budget.take(size)

    def close(self) -> None:
        """Release everything: the connection is gone."""
        self.budget.take(-self.requests - self.answers)
        self.requests = self.answers = 0
        self.budget.forget(self)


class _Waiter(NamedTuple):
    ready: Callable[[], bool]
    go_on: Callable[[], None]
    refuse: Callable[[], None]
    since: int


class MemoryBudget:
    """Budget of `limit_bytes`. Over the limit, new requests wait, and are refused after `wait_s`;
    meanwhile unread responses are dropped, from the connections with the most first.
    """

    def __init__(self, limit_bytes: int = 1 << 62, wait_s: int = 10) -> None:
        self.limit_bytes = limit_bytes
        self.held = 0
        self._wait_s = wait_s
        self._tick = 0
        self._accounts: set[Account] = set()
        self._waiting: dict[object, _Waiter] = {}
        """Waiting accounts, and other users of memory."""
        self._lent: dict[int, tuple[weakref.ref[Array], int]] = {}
        """Charged arrays and their bytes, by the id of their weak reference: arrays are not hashable."""
        self._freed: deque[int] = deque()
        """Bytes of arrays that no longer exist."""
        self._scheduled = False
        self._wanted = False

    @property
    def refusal(self) -> str:
        """Error message for a refused request."""
        return (
            f"the server holds {self.held} bytes of requests and answers, of at most {self.limit_bytes} "
            "(--max-buffered-bytes)"
        )

    def account(self, holder: AccountHolder) -> Account:
        """Open the account of a new connection."""
        account = Account(self, holder)
        self._accounts.add(account)
        return account

    def forget(self, account: Account) -> None:
        self._accounts.discard(account)
        self._waiting.pop(account, None)

    def fits(self, size: int) -> bool:
        self._release_freed()
        return self.held + size <= self.limit_bytes

    def has_room(self, size: int) -> bool:
        """Return True if `size` bytes fit, or if they are too many but nothing else is held."""
        self._release_freed()
        return self.held + size <= self.limit_bytes or not self.held

    def admit_answer(self, size: int) -> bool:
        """Return True if there is memory to keep `size` bytes of a response, after dropping unread ones if
        necessary. Requests that wait with all memory must not hinder those before them: responses may use
        more.
        """
        most = max(self.limit_bytes * _ANSWERS_SPARED, size)
        self._release_freed()
        if self.held + size > most:
            self.relieve(max(0, self.limit_bytes - size))
        return self.held + size <= most

    def hold_until_freed(self, array: Array) -> None:
        """Charge the bytes of an array until nothing views it any longer, in whatever thread that is."""
        loop = asyncio.get_running_loop()

        def note_freed(lease: weakref.ref[Array]) -> None:
            self._freed.append(self._lent.pop(id(lease))[1])
            # waking the loop takes a twentieth of a request of 600 KB; it looks by itself before it refuses
            if self._waiting:
                with suppress(RuntimeError):  # the event loop is closed
                    loop.call_soon_threadsafe(self._release_freed)

        lease = weakref.ref(array, note_freed)
        self._lent[id(lease)] = lease, array.nbytes
        self.take(array.nbytes)

    def _release_freed(self) -> None:
        while self._freed:
            self.take(-self._freed.popleft())

    def take(self, size: int) -> None:
        self.held += size
        if self.held > self.limit_bytes or (size < 0 and self._waiting):
            self._schedule_check()

    def wait(
        self,
        user: object,
        ready: Callable[[], bool],
        go_on: Callable[[], None],
        refuse: Callable[[], None],
    ) -> None:
        """Call `go_on` once `ready` returns True, or `refuse` after `wait_s`, unless the user, an account
        or any other object, waits already.
        """
        if user not in self._waiting:
            self._waiting[user] = _Waiter(ready, go_on, refuse, self._tick)
            self._wanted = True
            self._schedule_check()

    def wait_for_room(
        self, size: int, go_on: Callable[[], None], fail: Callable[[TpxError], None]
    ) -> Callable[[], None]:
        """Call `go_on` once there is room for `size` bytes, or `fail` after `wait_s`.

        Returns a function that cancels it; `fail` is then called too.
        """
        ticket = object()
        self.wait(ticket, lambda: self.has_room(size), go_on, lambda: fail(self.overload()))

        def call_off() -> None:
            if self._waiting.pop(ticket, None) is not None:
                fail(Cancelled("the request was cancelled"))

        return call_off

    def overload(self) -> Overloaded:
        """Return the error of a request that there is no memory for."""
        log.debug("a request is refused: %s", self.refusal)
        return Overloaded(self.refusal)

    def advance(self) -> None:
        """Advance the clock by one second, and refuse requests that have waited too long."""
        self._tick += 1
        self._release_freed()  # threads may have freed memory unnoticed, between two looks
        if not self._waiting:
            return
        self._drop_silent_requests()
        self.relieve(self.limit_bytes * _RELIEVED)
        # refusing a request may close other connections, which then no longer wait
        for user, waiter in list(self._waiting.items()):
            if self._tick - waiter.since > self._wait_s and self._waiting.pop(user, None) is not None:
                log.debug("what waited %d s for memory is refused: %s", self._wait_s, self.refusal)
                waiter.refuse()

    def _schedule_check(self) -> None:
        # callers are in the middle of other work: check the budget afterwards
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._check_budget)

    def _check_budget(self) -> None:
        self._scheduled = False
        self._release_freed()  # also what was freed just before somebody began to wait
        if self._wanted or self.held > self.limit_bytes:
            self.relieve(self.limit_bytes * _RELIEVED)
        if self.held > self.limit_bytes:
            self._drop_silent_requests()
        if self.held > self.limit_bytes * _ANSWERS_SPARED:
            self.relieve(self.limit_bytes * _RELIEVED, also_read=True)
        for user, waiter in list(self._waiting.items()):
            if waiter.ready() and self._waiting.pop(user, None) is not None:
                waiter.go_on()

    def _drop_silent_requests(self) -> None:
        for account in [each for each in self._accounts if each.requests]:
            account.holder.drop_silent_requests()

    def relieve(self, aim: float, *, also_read: bool = False) -> None:
        """Drop unread responses, from the connections with the most first, until at most `aim` bytes
        are held; with `also_read`, then also responses that are being read.
        """
        self._wanted = False
        if self.held <= aim:
            return
        holders = [
            (account.holder.reads, -account.answers, account) for account in self._accounts if account.answers
        ]
        for reads, _, account in sorted(holders, key=lambda each: each[:2]):  # accounts have no order
            if self.held <= aim or (reads and not also_read):
                return
            account.holder.drop_answers()


class _NoHolder:
    reads = True

    def drop_answers(self) -> None:
        """Do nothing: there are none."""

    def drop_silent_requests(self) -> None:
        """Do nothing: there are none."""


def uncounted() -> Account:
    """Return an account without limits, for a client's own connections."""
    return Account(MemoryBudget(), _NoHolder())
