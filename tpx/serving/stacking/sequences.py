"""Batches of sequence requests: each row belongs to a sequence, and the model receives its controls and
states.

Triton: core/src/sequence_batch_scheduler, core/src/sequence_state.cc.
"""

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from tpx.errors import ExecutionError, InvalidRequest
from tpx.protocol.datatypes import BY_NUMBER, DataType
from tpx.protocol.messages import ModelConfig, ModelSequenceBatching
from tpx.protocol.tensors import Array, Buffer
from tpx.serving.batch import Arrays, Batch, Stacking
from tpx.serving.request import InferRequest, drop_response

_LENGTH_BYTES = 4
"""Size of an empty string."""
_FLAGS = {"START": "sequence_start", "END": "sequence_end"}


class ControlTensor(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor that describes the row's sequence to the model, one element per row."""

    name: str
    kind: str
    """START, READY, END, or CORRID."""
    datatype: DataType
    false: Any = 0
    true: Any = 1

    def value(self, request: InferRequest | None) -> Any:
        """Return the element for a request's row, or for an empty one."""
        if request is None:
            return self.false
        if self.kind == "READY":
            return self.true
        if self.kind == "CORRID":
            correlation_id = request.live_sequence.id
            return str(correlation_id).encode() if self.datatype.size == 0 else correlation_id
        return self.true if request.head.parameters.get(_FLAGS[self.kind]) else self.false


class SequenceState(msgspec.Struct, frozen=True, kw_only=True):
    """State that the model returns with one request of a sequence and receives with the next; shapes
    are per row.
    """

    input_name: str
    output_name: str
    datatype: DataType
    initial: Array


class SequenceStacking(msgspec.Struct, frozen=True, kw_only=True):
    """Adds controls and states to the inputs stacked by `inner`, and stores the states in the outputs."""

    controls: Sequence[ControlTensor]
    states: Sequence[SequenceState]
    inner: Stacking
    batched: bool

    def gather(self, batch: Batch) -> Arrays:
        arrays = self.inner.gather(_fill_empty_rows(batch))
        arrays.update(self.added(batch.by_row(batch.requests), batch.requests[0]))
        return arrays

    def added(self, rows: Sequence[InferRequest | None], like: InferRequest) -> Arrays:
        """Return controls and states; in empty rows, states have the shapes of those of `like`."""
        height = len(rows)
        arrays: Arrays = {}
        for control in self.controls:
            array = np.array([control.value(request) for request in rows], control.datatype.numpy)
            arrays[control.name] = array.reshape(height, 1) if self.batched else array
        for state in self.states:
            arrays[state.input_name] = self._stack_state(state, rows, like)
        return arrays

    def scatter(self, batch: Batch, outputs: Arrays) -> None:
        filled = _fill_empty_rows(batch)
        states = self.check_states(outputs, len(filled.requests))
        self.inner.scatter(filled, outputs)
        if filled is not batch:
            batch.responses += [filled.responses[slot] for slot in batch.slots or ()]
        # nothing can fail from here on: a sequence gets all new states or none
        self.keep_states(states, batch.by_row(batch.requests))

    def check_states(self, outputs: Arrays, height: int) -> Arrays:
        """Return the outputs that are states. Raises ExecutionError if one differs from its configuration."""
        states: Arrays = {}
        for state in self.states:
            array = outputs.get(state.output_name)
            if array is None:
                raise ExecutionError(f"the model returned no state '{state.output_name}'")
            if array.dtype != state.datatype.numpy:
                raise ExecutionError(
                    f"state '{state.output_name}' has type {array.dtype}, the configuration says "
                    f"{state.datatype.name}"
                )
            if self.batched and array.shape[:1] != (height,):
                raise ExecutionError(
                    f"state '{state.output_name}' has shape {list(array.shape)}, expected {height} rows"
                )
            states[state.input_name] = array
        return states

    def keep_states(self, states: Arrays, rows: Sequence[InferRequest | None]) -> None:
        """Store the states for the next requests of the sequences."""
        for name, array in states.items():
            for row, request in enumerate(rows):
                if request is not None:
                    # a copy: the model may reuse its memory, and a view would keep the other rows
                    kept = array[row] if self.batched else array
                    request.live_sequence.states[name] = kept.copy()

    def _stack_state(
        self, state: SequenceState, rows: Sequence[InferRequest | None], like: InferRequest
    ) -> Array:
        first = value_of(state, like)
        if not self.batched:
            return first
        array = np.full(
            (len(rows), *first.shape), b"" if state.datatype.size == 0 else 0, state.datatype.numpy
        )
        for row, request in enumerate(rows):
            if request is None:
                continue
            value = value_of(state, request)
            if value.shape != first.shape:
                raise ExecutionError(
                    f"state '{state.input_name}' of sequence {request.live_sequence.id} has shape "
                    f"{list(value.shape)}, another in its batch has {list(first.shape)}"
                )
            array[row] = value
        return array


def value_of(state: SequenceState, request: InferRequest) -> Array:
    """Return the state for a request: that of the previous request, or the initial one."""
    if request.head.parameters.get("sequence_start"):
        return state.initial
    return request.live_sequence.states.get(state.input_name, state.initial)


def null_request(request: InferRequest) -> InferRequest:
    """Return a request for an empty row: the inputs of another one in its batch, with zeros as values.

    Triton: InferenceRequest::CopyAsNull, whose values are uninitialized memory.
    """
    buffers: list[Buffer] = [
        bytes(bound.size if bound.size >= 0 else _LENGTH_BYTES * math.prod(bound.shape))
        for bound in request.head.inputs
    ]
    return InferRequest(request.head, buffers, drop_response, None)


def _fill_empty_rows(batch: Batch) -> Batch:
    """Return the batch with requests in its empty rows too."""
    if not batch.empty:
        return batch
    null = null_request(batch.requests[0])
    return Batch([request or null for request in batch.by_row(batch.requests)])


def controls_of(config: ModelConfig) -> list[ControlTensor]:
    """Return the controls of a validated configuration."""
    controls = []
    for control_input in config.sequence_batching.control_input:
        for control in control_input.control:
            kind = ModelSequenceBatching.Control.Kind.Name(control.kind).removeprefix("CONTROL_SEQUENCE_")
            name = control_input.name
            if kind == "CORRID":
                datatype = BY_NUMBER[control.data_type]
                none: object = b"" if datatype.size == 0 else 0
                controls.append(ControlTensor(name=name, kind=kind, datatype=datatype, false=none))
                continue
            for field, number in (("int32_false_true", 8), ("fp32_false_true", 11), ("bool_false_true", 1)):
                values = list(getattr(control, field))
                if values:
                    controls.append(
                        ControlTensor(
                            name=name, kind=kind, datatype=BY_NUMBER[number], false=values[0], true=values[1]
                        )
                    )
    return controls


def check_correlation_id(model: str, controls: Sequence[ControlTensor], correlation_id: int | str) -> None:
    """Raise InvalidRequest for an id that the model's CORRID control cannot represent."""
    for control in controls:
        if control.kind != "CORRID":
            continue
        given = "BYTES" if isinstance(correlation_id, str) else "UINT64"
        text = control.datatype.size == 0
        if text != isinstance(correlation_id, str):
            raise InvalidRequest(
                f"sequence batching control '{control.name}' data-type is '{given}', but model '{model}' "
                f"expects '{control.datatype.name}'"
            )
        if not text:
            limits = np.iinfo(control.datatype.numpy)
            if not limits.min <= int(correlation_id) <= limits.max:
                raise InvalidRequest(
                    f"correlation ID {correlation_id} does not fit control '{control.name}' of model "
                    f"'{model}', which is {control.datatype.name}"
                )
