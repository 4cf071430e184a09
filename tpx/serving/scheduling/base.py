"""The seam between a model and its scheduling policy."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from tpx.errors import Cancelled, TpxError
from tpx.serving.request import InferRequest


class Refusal(NamedTuple):
    """A request that is given up, and what to answer it."""

    request: InferRequest
    error: TpxError

    @classmethod
    def of_cancelled(cls, request: InferRequest) -> "Refusal":
        """Nobody waits for its answer."""
        return cls(request, Cancelled("the request was cancelled"))


class Scheduler(Protocol):
    """Holds the requests that wait for an instance. Single-threaded; times are ns of one monotonic clock."""

    waits: bool
    """More requests may make a better batch: look only after all that have arrived are in."""
    timed: bool
    """Something may happen because time has passed: `expire` and `wake_ns` are asked."""

    def add(self, request: InferRequest) -> None:
        """Take a request; its `arrived_ns` is set. Raises RequestError."""

    def take(self, now_ns: int, *, idle: bool, lane: int = 0) -> Sequence[InferRequest | None]:
        """The requests that leave now, none if it is better to wait; of a slotted scheduler None stands for
        an empty slot.

        `idle` tells that an instance has nothing to do; otherwise a batch leaves only if waiting cannot
        improve it.
        """

    def expire(self, now_ns: int) -> Sequence[Refusal]:
        """Give up the requests that have waited too long."""

    def weed(self, now_ns: int) -> Sequence[Refusal]:
        """Give up the requests that nobody waits for any more, and those that depend on them."""

    def wake_ns(self, now_ns: int) -> int | None:
        """The first time after `now_ns` at which `take` or `expire` may give more than now, with no new
        arrival."""

    def __len__(self) -> int: ...


class Affinity(Protocol):
    """Which requests have to go to one instance, its lane, and wait there for those before them."""

    slotted: bool
    """The rows of a batch are the slots of its instance."""

    @property
    def live(self) -> int:
        """Sequences that have begun and not ended."""

    def open_lane(self, lane: int, now_ns: int) -> None:
        """Let sequences begin in one more lane."""

    def close_lane(self, lane: int) -> bool:
        """Let no more sequences begin in a lane. Return whether none is left, and the lane is forgotten.

        It is asked again until then.
        """

    def finished(self, requests: Sequence[InferRequest], now_ns: int) -> None:
        """What was taken has been computed."""

    def dropped(self, request: InferRequest, now_ns: int) -> Sequence[Refusal]:
        """What was taken will not be computed, nobody wants it any more; nor will what depends on it."""


class NoAffinity:
    """The affinity of requests that any instance may compute, in any order."""

    slotted = False
    live = 0

    def open_lane(self, lane: int, now_ns: int) -> None: ...
    def close_lane(self, lane: int) -> bool:  # noqa: ARG002
        return True

    def finished(self, requests: Sequence[InferRequest], now_ns: int) -> None: ...
    def dropped(self, request: InferRequest, now_ns: int) -> Sequence[Refusal]:  # noqa: ARG002
        return ()


NO_AFFINITY = NoAffinity()


@runtime_checkable
class SequenceScheduler(Scheduler, Affinity, Protocol):
    """Requests of a sequence are computed one after the other by the instance that has the sequence."""
