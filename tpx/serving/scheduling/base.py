"""The seam between a model and its scheduling policy."""

from collections.abc import Sequence
from typing import Protocol

from tpx.serving.request import InferRequest


class Scheduler(Protocol):
    """Holds the requests that wait for an instance. Single-threaded; times are ns of one monotonic clock."""

    waits: bool
    """More requests may make a better batch: look only after all that have arrived are in."""

    def add(self, request: InferRequest) -> None:
        """Take a request; its `arrived_ns` is set. Raises Overloaded."""

    def take(self, now_ns: int, *, idle: bool) -> Sequence[InferRequest]:
        """The requests that leave now, none if it is better to wait.

        `idle` tells that an instance has nothing to do; otherwise a batch leaves only if waiting cannot
        improve it.
        """

    def wake_ns(self) -> int | None:
        """When `take` may give something without any new arrival."""

    def drain(self) -> Sequence[InferRequest]:
        """Give up everything that waits."""

    def __len__(self) -> int: ...
