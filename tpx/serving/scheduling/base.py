"""The seam between a model and its scheduling policy."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tpx.errors import Cancelled, TpxError
from tpx.serving.request import InferRequest


class Refusal(NamedTuple):
    """A refused request and its error."""

    request: InferRequest
    error: TpxError

    @classmethod
    def of_cancelled(cls, request: InferRequest) -> "Refusal":
        """Return the refusal of a cancelled request."""
        return cls(request, Cancelled("the request was cancelled"))


class Affinity(Protocol):
    """Knows which requests must run on a particular instance, and in which order."""

    slotted: bool
    """True if the rows of a batch are slots of its instance."""

    @property
    def live(self) -> int:
        """Return the number of sequences that have begun and not ended."""

    def open_instance(self, instance: int, now_ns: int) -> None:
        """Let sequences begin on an additional instance."""

    def close_instance(self, instance: int) -> bool:
        """Let no more sequences begin on an instance. Return whether it has none left and was removed.

        Called again until it returns True.
        """

    def finished(self, requests: Sequence[InferRequest], now_ns: int) -> None:
        """Note that requests returned by `take` were computed."""

    def dropped(self, request: InferRequest, now_ns: int) -> Sequence[Refusal]:
        """Note that a request returned by `take` was cancelled; return the refusals of requests that
        depend on it.
        """


class NoAffinity:
    """The affinity of requests that any instance may compute in any order."""

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
    """Queue of requests waiting for an instance. Single-threaded; times are ns of one monotonic clock."""

    waits: bool
    """True if later requests may improve a batch, so `take` is called only after all arrived requests
    were added.
    """
    rows_at_once: int
    """Maximum rows of stackable requests that may be computed at once, without `take`, while the queue
    is empty and an instance is idle; 0 if `take` has to decide.
    """
    timed: bool
    """True if time alone may change the result, so `expire` and `wake_ns` are called."""

    @property
    def affinity(self) -> Affinity:
        """Return the affinity of requests to instances."""

    def add(self, request: InferRequest) -> None:
        """Add a request; its `arrived_ns` is set. Raises RequestError."""

    def take(self, now_ns: int, *, idle: bool, instance: int = 0) -> Sequence[InferRequest | None]:
        """Return the requests of the next batch; empty if it is better to wait. With slots, None marks
        an empty slot.

        `idle` means that an instance has nothing to do; otherwise a batch is returned only if waiting
        cannot improve it. `instance` matters only if requests are bound to instances.
        """

    def expire(self, now_ns: int) -> Sequence[Refusal]:
        """Refuse requests past their deadline."""

    def purge_cancelled(self, now_ns: int) -> Sequence[Refusal]:
        """Refuse cancelled requests, and those that depend on them."""

    def wake_ns(self, now_ns: int) -> int | None:
        """Return the first time after `now_ns` at which `take` or `expire` may return more than now
        without a new arrival.
        """

    def __len__(self) -> int: ...
