"""The seam between a model and its scheduling policy."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tpx.errors import Cancelled, TpxError
from tpx.serving.request import InferRequest


class Refusal(NamedTuple):
    """A request that is given up, and what to answer it."""

    request: InferRequest
    error: TpxError

    @classmethod
    def of_cancelled(cls, request: InferRequest) -> "Refusal":
        """Refuse a request that was cancelled."""
        return cls(request, Cancelled("the request was cancelled"))


class Affinity(Protocol):
    """Knows which requests have to go to one instance, and wait there for those before them."""

    slotted: bool
    """The rows of a batch are the slots of its instance."""

    @property
    def live(self) -> int:
        """Sequences that have begun and not ended."""

    def open_instance(self, instance: int, now_ns: int) -> None:
        """Let sequences begin on one more instance."""

    def close_instance(self, instance: int) -> bool:
        """Let no more sequences begin on an instance. Return whether none is left, and it is forgotten.

        It is asked again until then.
        """

    def finished(self, requests: Sequence[InferRequest], now_ns: int) -> None:
        """Take note that requests which were taken have been computed."""

    def dropped(self, request: InferRequest, now_ns: int) -> Sequence[Refusal]:
        """Take note that a request which was taken was cancelled; return what depends on it."""


class NoAffinity:
    """The affinity of requests that any instance may compute, in any order."""

    slotted = False
    live = 0

    def open_instance(self, instance: int, now_ns: int) -> None: ...
    def close_instance(self, instance: int) -> bool:  # noqa: ARG002
        return True

    def finished(self, requests: Sequence[InferRequest], now_ns: int) -> None: ...
    def dropped(self, request: InferRequest, now_ns: int) -> Sequence[Refusal]:  # noqa: ARG002
        return ()


NO_AFFINITY = NoAffinity()


class Scheduler(Protocol):
    """Holds the requests that wait for an instance. Single-threaded; times are ns of one monotonic clock."""

    waits: bool
    """More requests may make a better batch: look only after all that have arrived are in."""
    rows_at_once: int
    """While nothing waits and an instance is idle, requests of up to so many rows that can be stacked leave
    together at once; 0 where only `take` can tell."""
    timed: bool
    """Something may happen because time has passed: `expire` and `wake_ns` are asked."""

    @property
    def affinity(self) -> Affinity:
        """Say which requests have to go to which instance."""

    def add(self, request: InferRequest) -> None:
        """Take a request; its `arrived_ns` is set. Raises RequestError."""

    def take(self, now_ns: int, *, idle: bool, instance: int = 0) -> Sequence[InferRequest | None]:
        """Return the requests of the next batch, none if it is better to wait; with slots, None is an empty
        one.

        `idle` tells that an instance has nothing to do; otherwise a batch leaves only if waiting cannot
        improve it. `instance` matters only where requests have to go to one.
        """

    def expire(self, now_ns: int) -> Sequence[Refusal]:
        """Give up the requests that have waited too long."""

    def purge_cancelled(self, now_ns: int) -> Sequence[Refusal]:
        """Give up the cancelled requests, and those that depend on them."""

    def wake_ns(self, now_ns: int) -> int | None:
        """Return the first time after `now_ns` at which `take` or `expire` may give more than now, with no
        new arrival."""

    def __len__(self) -> int: ...
