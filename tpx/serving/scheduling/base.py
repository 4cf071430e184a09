"""The seam between a model and its scheduling policy."""

from collections.abc import Sequence
from typing import Protocol

from tpx.errors import TpxError
from tpx.serving.request import InferRequest


class Scheduler(Protocol):
    """Holds the requests that wait for an instance. Single-threaded; times are ns of one monotonic clock."""

    waits: bool
    """More requests may make a better batch: look only after all that have arrived are in."""
    sticky: bool
    """Requests belong to one instance, the lane: `take` is asked for each, and `finished` told."""
    expires: bool
    """Requests may be given up: `expire` is asked."""

    def add(self, request: InferRequest) -> None:
        """Take a request; its `arrived_ns` is set. Raises RequestError."""

    def take(self, now_ns: int, *, idle: bool, lane: int = 0) -> Sequence[InferRequest]:
        """The requests that leave now, none if it is better to wait.

        `idle` tells that an instance has nothing to do; otherwise a batch leaves only if waiting cannot
        improve it.
        """

    def finished(self, requests: Sequence[InferRequest], now_ns: int) -> None:
        """What was taken has been computed."""

    def expire(self, now_ns: int) -> Sequence[tuple[InferRequest, TpxError]]:
        """Give up the requests that have waited too long, each with what to answer."""

    def wake_ns(self) -> int | None:
        """When `take` or `expire` may give something without any new arrival."""

    def __len__(self) -> int: ...
