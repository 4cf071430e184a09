"""Iterative sequences: one request that its model computes as often as it wants to.

Each request is a sequence of its own. After an execution the model either is done with it, which ends the
sequence, or wants it again, and it joins a later batch (Triton: `iterative_sequence`).
"""

import itertools
from collections.abc import Sequence
from typing import Protocol

from tpx.errors import InvalidRequest
from tpx.serving.request import InferRequest
from tpx.serving.scheduling.base import Refusal, SequenceScheduler
from tpx.serving.scheduling.sequences import LiveSequence


class Table(Protocol):
    """What it needs of the table of sequences."""

    def end(self, sequence: LiveSequence) -> None:
        """No further request of it comes."""


class IterativeSequences:
    """Makes sequences of requests for the strategy `inner`."""

    waits = True
    timed = True

    def __init__(self, inner: SequenceScheduler, table: Table, model_name: str) -> None:
        self._inner = inner
        self.slotted = inner.slotted
        self._table = table
        self._model_name = model_name
        self._ids = itertools.count(1)

    def add(self, request: InferRequest) -> None:
        head = request.head
        parameters = dict(head.parameters)
        if request.sequence is None:
            if parameters.get("sequence_id"):
                raise InvalidRequest(
                    f"inference request to model '{self._model_name}' must not specify a correlation ID: "
                    "its sequences are iterative, each request is one of its own"
                )
            parameters["sequence_id"] = next(self._ids)
            parameters["sequence_start"] = True
            request.head = head.with_parameters(parameters)
        elif parameters.pop("sequence_start", False):
            request.head = head.with_parameters(parameters)
        self._inner.add(request)

    def take(self, now_ns: int, *, idle: bool, lane: int = 0) -> Sequence[InferRequest | None]:
        return self._inner.take(now_ns, idle=idle, lane=lane)

    def open_lane(self, lane: int, now_ns: int) -> None:
        self._inner.open_lane(lane, now_ns)

    def close_lane(self, lane: int) -> bool:
        return self._inner.close_lane(lane)

    def finished(self, requests: Sequence[InferRequest], now_ns: int) -> None:
        for request in requests:
            sequence: LiveSequence = request.sequence
            if not sequence.continues:
                self._table.end(sequence)
            sequence.continues = False
        self._inner.finished(requests, now_ns)

    def dropped(self, request: InferRequest, now_ns: int) -> Sequence[Refusal]:
        return self._inner.dropped(request, now_ns)

    def expire(self, now_ns: int) -> Sequence[Refusal]:
        return self._inner.expire(now_ns)

    def weed(self, now_ns: int) -> Sequence[Refusal]:
        return self._inner.weed(now_ns)

    def wake_ns(self, now_ns: int) -> int | None:
        return self._inner.wake_ns(now_ns)

    @property
    def live(self) -> int:
        return self._inner.live

    def __len__(self) -> int:
        return len(self._inner)
