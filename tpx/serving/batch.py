"""Batches: requests that are stacked, computed together and split again."""

import time
from collections.abc import Sequence
from typing import Protocol, TypeVar

import msgspec
import numpy as np

from tpx.errors import TpxError
from tpx.protocol.tensors import Array, Buffer
from tpx.serving.request import InferRequest, InferResponse

Arrays = dict[str, Array]


class GpuRange(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes in GPU memory, which stay until the request that they belong to has ended."""

    address: int
    size: int


class GpuTensor(msgspec.Struct, frozen=True, kw_only=True):
    """An input that is at least partly in GPU memory: its requests' parts, one after another."""

    shape: Sequence[int]
    dtype: np.dtype[np.generic]
    parts: Sequence[GpuRange | Buffer]

    def __len__(self) -> int:
        return self.shape[0]


_clock = time.perf_counter_ns
_T = TypeVar("_T")


class Batch:
    """Requests with compatible inputs, and the times of their phases (time.perf_counter_ns)."""

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
        """Row of each request, if rows are the slots of sequences."""
        self.empty = empty
        """Number of empty rows, which are computed but belong to no request."""
        self.size = 0
        for request in requests:
            self.size += request.head.batch_size
        self.executes = True
        """True if the batch counts as an execution, False if it is part of another one."""
        self.responses: list[InferResponse] = []
        self.error: TpxError | None = None
        """Error of the batch; the responses tell which requests failed."""
        self.alone: Sequence[Batch] = ()
        """Single-request batches, if the requests were computed or are counted separately."""
        self.started_ns = self.gathered_ns = self.computed_ns = self.ended_ns = 0
        self.long = False
        """True if computing may block the event loop for too long."""
        self.cost_ns = 0
        """Time it took to compute, measured in the executing thread."""

    @classmethod
    def of_rows(cls, rows: Sequence[InferRequest | None]) -> "Batch":
        """Return a batch of one-row requests whose rows are sequence slots; None is an empty row."""
        slots = [row for row, request in enumerate(rows) if request is not None]
        requests = [request for request in rows if request is not None]
        return cls(requests, slots, len(rows) - len(requests))

    def single(self, index: int) -> "Batch":
        """Return one of the requests as a batch, in the same row."""
        if self.slots is None:
            return Batch([self.requests[index]])
        empty = self.empty + len(self.requests) - 1
        return Batch([self.requests[index]], [self.slots[index]], empty)

    def by_row(self, items: Sequence[_T]) -> Sequence[_T | None]:
        """Spread one item per request over the rows; empty rows get None."""
        if not self.empty or self.slots is None:
            return items
        rows: list[_T | None] = [None] * (len(items) + self.empty)
        for slot, item in zip(self.slots, items, strict=True):
            rows[slot] = item
        return rows

    def part_of(self, request: InferRequest) -> "Batch":
        """Return the batch the request was computed in: this one, or its own if this one failed."""
        return next((single for single in self.alone if single.requests[0] is request), self)

    def fail(self, error: TpxError) -> None:
        """Fail every request with this error."""
        self.responses = [InferResponse([], error) for _ in self.requests]
        self.end(error)

    def end(self, error: TpxError | None) -> None:
        """End the batch; phases that did not take place get a duration of 0."""
        self.error = error
        now = _clock()
        self.started_ns = self.started_ns or now
        self.gathered_ns = self.gathered_ns or now
        self.computed_ns = self.ended_ns = now


class EarlyResponse:
    """A response to a request before its batch has ended, and its times.

    `batch` is the request as a batch, with the times of the final response. The response is the
    `index`-th of the request; `begun_ns` is when the previous one was sent, or the inputs were
    gathered.
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
        self, batch: Batch, response: InferResponse, index: int = 0, begun_ns: int = 0, size: int = 0
    ) -> None:
        self.batch = batch
        self.request = batch.requests[0]
        self.response = response
        self.index = index
        self.size = size
        """Bytes of the response's tensors."""
        self.started_ns = batch.started_ns
        self.gathered_ns = batch.gathered_ns
        self.begun_ns = begun_ns or batch.gathered_ns
        self.computed_ns = batch.computed_ns
        self.ended_ns = batch.ended_ns


class Stacking(Protocol):
    """Makes arrays from batches; runs in the instance's thread, which records the times of the batch."""

    def gather(self, batch: Batch) -> Arrays:
        """Return the inputs of the model. Raises InvalidRequest."""

    def scatter(self, batch: Batch, outputs: Arrays) -> None:
        """Give each request its response.

        Raises ExecutionError for an output that is missing or differs from the configuration.
        """
