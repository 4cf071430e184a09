"""Requests that a model computes together: stacked before, split afterwards."""

import time
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from tpx.errors import TpxError
from tpx.serving.request import InferRequest, InferResponse

Arrays = dict[str, npt.NDArray[Any]]

_clock = time.perf_counter_ns


class Batch:
    """Requests whose inputs fit together, and when what happened to them. Times are on
    time.perf_counter_ns."""

    __slots__ = (
        "alone",
        "computed_ns",
        "cost_ns",
        "ended_ns",
        "error",
        "gathered_ns",
        "lane",
        "long",
        "requests",
        "responses",
        "size",
        "started_ns",
    )

    def __init__(self, requests: Sequence[InferRequest]) -> None:
        self.requests = requests
        self.size = 0
        for request in requests:
            self.size += request.head.batch_size
        self.responses: list[InferResponse] = []
        self.error: TpxError | None = None
        """Something failed: the responses tell which requests have an error."""
        self.alone: Sequence[Batch] = ()
        """Its requests one by one, as they were computed after the whole had failed."""
        self.started_ns = self.gathered_ns = self.computed_ns = self.ended_ns = 0
        self.lane: Any = None
        """Whose instances compute it."""
        self.long = False
        """It may take longer than the event loop should."""
        self.cost_ns = 0
        """What computing it took from whoever computed it."""

    def part_of(self, request: InferRequest) -> "Batch":
        """What a request was computed in: all of it, or by itself after the whole had failed."""
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
