"""Memory budget for the requests and responses that a server holds, across all connections.

Charged are: bodies and messages larger than one read, until they are responded to; messages that wait
unread; responses that clients have not read. A connection may hold at most what is still free, so that
greedy ones leave memory to others; a small request of a connection that holds nothing is always served.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

_RELIEVED = 7 / 8
"""Fraction of the budget that may stay in use after responses were dropped."""
_READERS_SPARED = 5 / 4
"""Fraction of the budget above which even responses that clients are reading are dropped."""


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
    def full(self) -> bool:
        """True if the connection holds so much that its next request must wait."""
        held = self.requests + self.answers
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
        self._waiting: dict[Account, _Waiter] = {}
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
        return self.held + size <= self.limit_bytes

    def take(self, size: int) -> None:
        self.held += size
        if self.held > self.limit_bytes or (size < 0 and self._waiting):
            self._schedule_check()

    def wait(
        self,
        account: Account,
        ready: Callable[[], bool],
        go_on: Callable[[], None],
        refuse: Callable[[], None],
    ) -> None:
        """Call `go_on` once `ready` returns True, or `refuse` after `wait_s`."""
        if account not in self._waiting:
            self._waiting[account] = _Waiter(ready, go_on, refuse, self._tick)
            self._wanted = True
            self._schedule_check()

    def advance(self) -> None:
        """Advance the clock by one second, and refuse requests that have waited too long."""
        self._tick += 1
        if not self._waiting:
            return
        self._drop_silent_requests()
        self.relieve(self.limit_bytes * _RELIEVED)
        # refusing a request may close other connections, which then no longer wait
        for account, waiter in list(self._waiting.items()):
            if self._tick - waiter.since > self._wait_s and self._waiting.pop(account, None) is not None:
                waiter.refuse()

    def _schedule_check(self) -> None:
        # callers are in the middle of other work: check the budget afterwards
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._check_budget)

    def _check_budget(self) -> None:
        self._scheduled = False
        if self._wanted or self.held > self.limit_bytes:
            self.relieve(self.limit_bytes * _RELIEVED)
        if self.held > self.limit_bytes:
            self._drop_silent_requests()
        if self.held > self.limit_bytes * _READERS_SPARED:
            self.relieve(self.limit_bytes * _RELIEVED, also_read=True)
        for account, waiter in list(self._waiting.items()):
            if waiter.ready() and self._waiting.pop(account, None) is not None:
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
