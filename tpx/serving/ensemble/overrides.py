"""Overrides of a step for the sequence that the steps behind it are part of (Triton:
core/src/ensemble_scheduler/ensemble_scheduler.cc)."""

import logging
from collections.abc import Mapping
from typing import Any

from tpx.errors import Code, ExecutionError
from tpx.protocol.v2 import Parameter
from tpx.serving.ensemble.plan import Call, EnsemblePlan

log = logging.getLogger(__name__)

SequenceParameters = dict[str, Parameter]
"""`sequence_id`, where there is one, `sequence_start` and `sequence_end`."""

_FLAGS = ("sequence_start", "sequence_end")
_MOST = 2**64


def sequence_of(parameters: Mapping[str, Parameter]) -> SequenceParameters:
    """Return what an answer tells of the sequence of a request with these parameters: always all three."""
    return {
        "sequence_id": parameters.get("sequence_id", 0),
        "sequence_start": parameters.get("sequence_start", False),
        "sequence_end": parameters.get("sequence_end", False),
    }


def said_of_sequence(
    said: Mapping[str, Parameter], before: Mapping[str, Parameter]
) -> SequenceParameters | None:
    """Return what the parameters of a response make of the sequence of the step's own request, which has
    `before`.

    None where they say nothing of it; with any of the three, a flag that is not among them is off. Raises
    ExecutionError.
    """
    if "sequence_id" not in said and not any(flag in said for flag in _FLAGS):
        return None
    sequence: SequenceParameters = {flag: said.get(flag, False) for flag in _FLAGS}
    for flag in _FLAGS:
        if not isinstance(sequence[flag], bool):
            raise ExecutionError(
                f"expected response parameter '{flag}' to be a bool, got {sequence[flag]!r}",
                code=Code.INVALID_ARGUMENT,
            )
    identity = said.get("sequence_id", before.get("sequence_id", 0))
    whole = isinstance(identity, int) and not isinstance(identity, bool) and 0 <= identity < _MOST
    if not whole and not isinstance(identity, str):
        raise ExecutionError(
            f"expected response parameter 'sequence_id' to be a whole number or a string, got {identity!r}",
            code=Code.INVALID_ARGUMENT,
        )
    return {"sequence_id": identity, **sequence}


class Overrides:
    """Overrides by the steps of one run, by iteration, until all that read it have taken it.

    Readers are the steps right behind, by number, and behind the last one the answer to the client.
    """

    def __init__(self, plan: EnsemblePlan) -> None:
        steps, producers = plan.steps, plan.producers
        self._plan = plan
        self._answer = len(steps)
        read = [*([given.tensor for given in step.inputs] for step in steps), plan.wanted]
        self._sources = [
            tuple(dict.fromkeys(producers[tensor] for tensor in tensors if tensor in producers))
            for tensors in read
        ]
        """The steps right before each reader, in the order of what it reads."""
        self._readers = [sum(number in before for before in self._sources) for number in range(len(steps))]
        self._said: dict[tuple[int, int], list[Any]] = {}
        """[what was said, how many readers have still to take it]."""

    def put(self, step: int, iteration: int, sequence: SequenceParameters) -> None:
        """A response has said it, or the request that it answers had it."""
        if self._readers[step]:
            self._said[step, iteration] = [sequence, self._readers[step]]

    def take(self, call: Call) -> SequenceParameters | None:
        """Return what holds for a call; where steps before it disagree, what was said for its first input."""
        return self._take(call.step, call.iteration)

    def take_for_answer(self, iteration: int) -> SequenceParameters | None:
        """Return what holds for an answer; where steps disagree, what was said for its first output."""
        return self._take(self._answer, iteration)

    def _take(self, reader: int, iteration: int) -> SequenceParameters | None:
        found: SequenceParameters | None = None
        for source in self._sources[reader]:
            iterates = self._plan.steps[source].iterates
            key = source, iteration if iterates else 0
            kept = self._said.get(key)
            if kept is None:
                continue
            if iterates:  # what comes once may be wanted for any number of iterations
                kept[1] -= 1
                if not kept[1]:
                    del self._said[key]
            if found is None:
                found = kept[0]
            elif found != kept[0] and reader != self._answer:
                model = self._plan.steps[reader].model
                log.error("steps before '%s' say different things of its sequence: %s is used", model, found)
        return found
