"""Requests that a model computes together: stacked before, split afterwards."""

import time
from collections.abc import Sequence
from typing import TypeVar

from tpx.errors import TpxError
from tpx.protocol.tensors import Array
from tpx.serving.request import InferRequest, InferResponse

Arrays = dict[str, Array]

_clock = time.perf_counter_ns
_T = TypeVar("_T")


class Batch:
    """Requests whose inputs fit together, and when what happened to them. Times are on
    time.perf_counter_ns."""

    __slots__ = (
        "alone",
        "computed_ns",
        "cost_ns",
        "empty",
        "ended_ns",
        "error",
        "executes",
        "gathered_ns",
        "long",
        "requests",
        "responses",
        "size",
        "slots",
        "started_ns",
    )

    def __init__(
        self, requests: Sequence[InferRequest], slots: Sequence[int] | None = None, empty: int = 0
    ) -> None:
        self.requests = requests
        self.slots = slots
        """The row of each request, where rows are the slots of sequences."""
        self.empty = empty
        """Rows besides that no request has: the model computes them, and nobody gets them."""
        self.size = 0
        for request in requests:
            self.size += request.head.batch_size
        self.executes = True
        """It counts as an execution; otherwise it was part of one that counts by itself."""
        self.responses: list[InferResponse] = []
        self.error: TpxError | None = None
        """Something failed: the responses tell which requests have an error."""
        self.alone: Sequence[Batch] = ()
        """Its requests one by one, as they were computed after the whole had failed, or as they count."""
        self.started_ns = self.gathered_ns = self.computed_ns = self.ended_ns = 0
        self.long = False
        """It may take longer than the event loop should."""
        self.cost_ns = 0
        """What computing it took from whoever computed it."""

    @classmethod
    def of_rows(cls, rows: Sequence[InferRequest | None]) -> "Batch":
        """Make a batch of requests of one row each, whose rows are slots of sequences; None is an empty
        one."""
        slots = [row for row, request in enumerate(rows) if request is not None]
        requests = [request for request in rows if request is not None]
        return cls(requests, slots, len(rows) - len(requests))

    def single(self, index: int) -> "Batch":
        """Return one of its requests by itself, in the same row."""
        if self.slots is None:
            return Batch([self.requests[index]])
        empty = self.empty + len(self.requests) - 1
        return Batch([self.requests[index]], [self.slots[index]], empty)

    def by_row(self, items: Sequence[_T]) -> Sequence[_T | None]:
        """Put what belongs to each of its requests into their rows; None is in the empty ones."""
        if not self.empty or self.slots is None:
            return items
        rows: list[_T | None] = [None] * (len(items) + self.empty)
        for slot, item in zip(self.slots, items, strict=True):
            rows[slot] = item
        return rows

    def part_of(self, request: InferRequest) -> "Batch":
        """Return what a request was computed in: all of it, or by itself after the whole had failed."""
        return next((single for single in self.alone if single.requests[0] is request), self)

    def fail(self, error: TpxError) -> None:
        """Answer every request with the error."""
        self.responses = [InferResponse([], error) for _ in self.requests]
        self.end(error)

    def end(self, error: TpxError | None) -> None:
        """Nothing more comes: what did not happen takes no time."""
        self.error = error
        now = _clock()
        self.started_ns = self.started_ns or now
        self.gathered_ns = self.gathered_ns or now
        self.computed_ns = self.ended_ns = now


class EarlyResponse:
    """A response to a request whose batch has not ended, and the times of its making.

    `batch` is the request as a batch of its own, whose times are those of the final response. The response is
    the `index`-th of the request; `begun_ns` is when the one before was sent, or the inputs were gathered.
    """

    __slots__ = (
        "batch",
        "begun_ns",
        "computed_ns",
        "ended_ns",
        "gathered_ns",
        "index",
        "request",
        "response",
        "size",
        "started_ns",
    )

    def __init__(
        self, batch: Batch, response: InferResponse, *, index: int = 0, begun_ns: int = 0, size: int = 0
    ) -> None:
        self.batch = batch
        self.request = batch.requests[0]
        self.response = response
        self.index = index
        self.size = size
        """Bytes of its tensors."""
        self.started_ns = batch.started_ns
        self.gathered_ns = batch.gathered_ns
        self.begun_ns = begun_ns or batch.gathered_ns
        self.computed_ns = batch.computed_ns
        self.ended_ns = batch.ended_ns
