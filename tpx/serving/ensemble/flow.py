"""Iterations of a request behind a decoupled model: which have arrived, can run, or must wait."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from tpx.protocol.tensors import Tensor
from tpx.serving.ensemble.plan import Call, EnsemblePlan, SequenceParameters
from tpx.serving.request import InferRequest

log = logging.getLogger(__name__)

_HOLD_S = 300.0
"""A decoupled model that is held back longer continues regardless of the limit, as in Triton."""


@dataclass(eq=False)
class Flow:
    """Values by tensor and iteration; a value is kept until all its consumers have used it.

    With `max_inflight_requests`, a step has at most that number of requests in flight and of values
    waiting behind it. At the limit it is not called, and a decoupled model is held back at its next
    response. The arguments belong to the run: the number of missing inputs that come once, by step, calls
    that can run, and requests in flight; `_advance` starts what is ready.
    """

    _plan: EnsemblePlan
    _missing: Sequence[int]
    _ready: deque[Call]
    _children: Collection[InferRequest]
    _advance: Callable[[], None]

    def __post_init__(self) -> None:
        plan = self._plan
        self._limit = plan.max_inflight
        self._values: dict[int, dict[int, list[Any]]] = {tensor: {} for tensor in plan.streams}
        """Per tensor and iteration: [value, number of consumers that have not used it, its sequence]."""
        self._issued = [0] * len(plan.steps)
        self._produced = [0] * len(plan.steps)
        self._inflight = [0] * len(plan.steps)
        self._sources: dict[InferRequest, int] = {}
        """Requests in flight to decoupled models, and their steps."""
        self._held: set[InferRequest] = set()
        self._stalled = False
        self.answered = 0
        """Iterations sent to the client."""
        self._timer: asyncio.TimerHandle | None = None

    # values

    def put(
        self, tensor: int, iteration: int, value: Tensor | None, sequence: SequenceParameters | None
    ) -> None:
        """Add a value, or note that it was left out, with the sequence parameters that its step has set."""
        plan = self._plan
        self._values[tensor][iteration] = [value, plan.uses[tensor], sequence]
        for step in plan.consumers[tensor]:
            self.issue_calls(step)

    def take(self, tensor: int, iteration: int) -> Tensor | None:
        """Return a value for one of its uses."""
        values = self._values[tensor]
        kept = values[iteration]
        kept[1] -= 1
        if not kept[1]:
            del values[iteration]
        value: Tensor | None = kept[0]
        return value

    def sequence(self, tensor: int, iteration: int) -> SequenceParameters | None:
        """Return the sequence parameters of a value that is not used up."""
        sequence: SequenceParameters | None = self._values[tensor][iteration][2]
        return sequence

    @property
    def has_answer(self) -> bool:
        """Return whether all values of the next response have arrived."""
        return all(self.answered in self._values[tensor] for tensor in self._plan.wanted_streams)

    def next_answer(self, once: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the values of the next response; `once` has those that come once."""
        iteration = self.answered
        self.answered += 1
        return [
            self.take(tensor, iteration) if tensor in self._values else once[tensor]
            for tensor in self._plan.wanted
        ]

    @property
    def stuck(self) -> bool:
        """Return whether values are left that no step can use."""
        return any(self._values.values())

    # calls

    def issue_calls(self, step: int) -> None:
        """Call a step for each iteration for which all inputs have arrived."""
        streamed = self._plan.steps[step].streamed
        limit = self._limit
        while streamed and not self._missing[step]:
            if limit and (self._inflight[step] >= limit or self._is_full(step)):
                return
            iteration = self._issued[step]
            if any(iteration not in self._values[tensor] for tensor in streamed):
                return
            self._issued[step] += 1
            self._inflight[step] += 1
            self._ready.append(Call(step, iteration))

    def begin(self, step: int, child: InferRequest) -> None:
        """Note that a step was called."""
        if self._plan.steps[step].decoupled:
            self._sources[child] = step
            if self._stalled:
                child.stall(True)
            self.balance()

    def index_of(self, call: Call) -> int:
        """Return the iteration of a call's next response."""
        if not self._plan.steps[call.step].decoupled:
            return call.iteration
        self._produced[call.step] += 1
        return self._produced[call.step] - 1

    def finished(self, step: int, child: InferRequest) -> None:
        """Note that a call has received its last response."""
        if self._plan.steps[step].streamed:
            self._inflight[step] -= 1
        self._sources.pop(child, None)
        self._held.discard(child)

    # backpressure

    def stall(self, stalled: bool) -> None:
        """Pause or resume, depending on whether the client reads."""
        self._stalled = stalled
        for child in list(self._sources):
            child.stall(stalled or child in self._held)

    def balance(self) -> None:
        """Hold models back or let them continue, after a value was added or used."""
        if not self._limit:
            return
        self._look_at_all_steps()
        for child, step in list(self._sources.items()):
            full = self._is_full(step)
            if full != (child in self._held):
                (self._held.add if full else self._held.discard)(child)
                child.stall(full or self._stalled)
        if self._held and not self._ready and len(self._held) == len(self._children):
            self._lift_limit("nothing else can go on")
        elif self._held and self._timer is None:
            why = f"{_HOLD_S:.0f} s have not been enough for the steps behind it"
            self._timer = asyncio.get_running_loop().call_later(_HOLD_S, self._lift_limit, why)
        elif not self._held:
            self.close()

    def close(self) -> None:
        """Cancel the timer: the request has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _is_full(self, step: int) -> bool:
        """Return whether the maximum number of values is waiting behind a step."""
        outputs = self._plan.steps[step].outputs.values()
        return any(len(self._values[tensor]) >= self._limit for tensor in outputs if tensor in self._values)

    def _lift_limit(self, why: str) -> None:
        """Ignore the limit from now on; otherwise the request would never end."""
        self.close()
        log.error("ensemble step continues beyond max_inflight_requests: %s", why)
        self._limit = 0
        held, self._held = list(self._held), set()
        for child in held:
            child.stall(self._stalled)
        self._look_at_all_steps()
        self._advance()

    def _look_at_all_steps(self) -> None:
        for step in range(len(self._plan.steps)):
            self.issue_calls(step)
