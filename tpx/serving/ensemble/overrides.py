"""What a step says of the sequence that the steps behind it are part of (Triton:
core/src/ensemble_scheduler/ensemble_scheduler.cc)."""

import logging
from collections.abc import Mapping
from typing import Any

from tpx.errors import Code, ExecutionError
from tpx.protocol.v2 import Parameter
from tpx.serving.ensemble.course import Call, Course

log = logging.getLogger(__name__)

SequenceParameters = dict[str, Parameter]
"""`sequence_id`, where there is one, `sequence_start` and `sequence_end`."""

_FLAGS = ("sequence_start", "sequence_end")
_MOST = 2**64


def said_of_sequence(
    said: Mapping[str, Parameter], before: Mapping[str, Parameter]
) -> SequenceParameters | None:
    """What the parameters of a response make of the sequence of the step's own request, which has `before`.

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
    """Of one run: what was said by which part, in which iteration, until all that follow have been called."""

    def __init__(self, course: Course) -> None:
        parts, producers = course.parts, course.producers
        self._course = course
        self._sources = [
            tuple(dict.fromkeys(producers[g.tensor] for g in part.inputs if g.tensor in producers))
            for part in parts
        ]
        """Of each part: the parts right before it, in the order of its inputs."""
        self._readers = [sum(number in before for before in self._sources) for number in range(len(parts))]
        self._said: dict[tuple[int, int], list[Any]] = {}
        """[what was said, how many parts have still to be called with it]."""

    def put(self, part: int, iteration: int, sequence: SequenceParameters) -> None:
        """A response has said it, or the request that it answers had it."""
        if self._readers[part]:
            self._said[part, iteration] = [sequence, self._readers[part]]

    def take(self, call: Call) -> SequenceParameters | None:
        """What holds for a call; where parts before it disagree, it is what was said for its first input."""
        found: SequenceParameters | None = None
        for source in self._sources[call.part]:
            iterates = self._course.parts[source].iterates
            key = source, call.iteration if iterates else 0
            kept = self._said.get(key)
            if kept is None:
                continue
            if iterates:  # what comes once may be wanted for any number of iterations
                kept[1] -= 1
                if not kept[1]:
                    del self._said[key]
            if found is None:
                found = kept[0]
            elif found != kept[0]:
                model = self._course.parts[call.part].model
                log.error("steps before '%s' say different things of its sequence: %s is used", model, found)
        return found
