"""Inputs that the server adds to requests of a sequence, and states that it keeps, for each request by
itself.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tpx.errors import ExecutionError
from tpx.protocol.tensors import Buffer, Tensor, as_array
from tpx.serving.backends.python.worker.frames import TensorHead
from tpx.serving.request import InferRequest
from tpx.serving.stacking.base import Stacking
from tpx.serving.stacking.sequences import (
    ControlTensor,
    SequenceStacking,
    SequenceState,
    nothing_of,
    value_of,
)


class SequenceTensors:
    """Controls and states of a model; most models have none."""

    def __init__(
        self,
        controls: Sequence[ControlTensor] = (),
        states: Sequence[SequenceState] = (),
        *,
        batched: bool = False,
    ) -> None:
        self._controls = controls
        self._batched = batched
        self.states = states
        self.any = bool(controls or states)

    @classmethod
    def of(cls, stacking: Stacking, *, batched: bool) -> "SequenceTensors":
        """Return the controls and states for models whose batches are stacked this way."""
        if isinstance(stacking, SequenceStacking):
            return cls(stacking.controls, stacking.states, batched=batched)
        return cls()

    def added(self, request: InferRequest) -> list[Tensor]:
        """Return the inputs added by the server."""
        if not self.any:
            return []
        return self._tensors(request, [value_of(state, request) for state in self.states])

    def added_to_null(self, request: InferRequest) -> list[Tensor]:
        """Return the inputs of an empty row in the batch of `request`."""
        shapes = [value_of(state, request).shape for state in self.states]
        return self._tensors(
            None, [nothing_of(state, shape) for state, shape in zip(self.states, shapes, strict=True)]
        )

    def _tensors(self, request: InferRequest | None, states: Sequence[Any]) -> list[Tensor]:
        front = (1, 1) if self._batched else (1,)
        found = []
        for control in self._controls:
            array: Any = np.full(front, control.value(request), control.datatype.numpy)
            found.append(Tensor.from_numpy(control.name, array, control.datatype.name))
        for state, value in zip(self.states, states, strict=True):
            array = value[None] if self._batched else value
            found.append(Tensor.from_numpy(state.input_name, array, state.datatype.name))
        return found

    def keep(self, request: InferRequest, heads: Sequence[TensorHead], buffers: Sequence[Buffer]) -> None:
        """Store the states of a response. Raises ExecutionError if one is missing or has another datatype."""
        given = {head.name: index for index, head in enumerate(heads)}
        for state in self.states:
            index = given.get(state.output_name)
            if index is None:
                raise ExecutionError(f"the model gave no state '{state.output_name}'")
            head = heads[index]
            if head.datatype != state.datatype.name:
                raise ExecutionError(
                    f"state '{state.output_name}' has type {head.datatype}, the configuration says "
                    f"{state.datatype.name}"
                )
            # a copy: a view would keep its block of shared memory for the whole sequence
            array = as_array(buffers[index], head.datatype, head.shape).copy()
            request.sequence.states[state.input_name] = array[0] if self._batched else array
