"""Requests of sequences: every row belongs to a sequence, whose place, controls and states the model is told.

Triton: core/src/sequence_batch_scheduler, core/src/sequence_state.cc.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tpx.errors import ExecutionError, InvalidRequest
from tpx.protocol.datatypes import BY_NUMBER, DataType
from tpx.serving.batch import Arrays, Batch
from tpx.serving.request import InferRequest
from tpx.serving.stacking.plain import PlainStacking, RowOutputs

_clock = time.perf_counter_ns
_FLAGS = {"START": "sequence_start", "END": "sequence_end"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A tensor that tells the model about the row's sequence: one element a row."""

    name: str
    kind: str
    """START, READY, END or CORRID."""
    datatype: DataType
    false: Any = 0
    true: Any = 1

    def value(self, request: InferRequest) -> Any:
        """Of a row with a request; a row without one has `false`."""
        if self.kind == "READY":
            return self.true
        if self.kind == "CORRID":
            correlation_id = request.sequence.id
            return str(correlation_id).encode() if self.datatype.size == 0 else correlation_id
        return self.true if request.head.parameters.get(_FLAGS[self.kind]) else self.false


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What the model gives after one request of a sequence and gets with the next; shapes are of one row."""

    input_name: str
    output_name: str
    datatype: DataType
    initial: npt.NDArray[Any]


class SequenceStacking:
    """`slotted`: a row for every slot up to the last one in the batch, empty where no request has it."""

    def __init__(
        self, controls: Sequence[Control], states: Sequence[State], *, batched: bool, slotted: bool
    ) -> None:
        self.controls = controls
        self.states = states
        self._batched = batched
        self._slotted = slotted and batched
        self._plain = PlainStacking(batched=batched)

    def gather(self, batch: Batch) -> Arrays:
        began_ns = _clock()
        requests = batch.requests
        rows, height = self._rows(batch)
        arrays = self._plain.gather(batch) if len(rows) == height else self._with_gaps(requests, rows, height)
        for control in self.controls:
            cells = [control.false] * height
            for request, row in zip(requests, rows, strict=True):
                cells[row] = control.value(request)
            array = np.array(cells, control.datatype.numpy)
            arrays[control.name] = array.reshape(height, 1) if self._batched else array
        for state in self.states:
            arrays[state.input_name] = self._state(state, requests, rows, height)
        batch.started_ns = began_ns
        batch.gathered_ns = _clock()
        return arrays

    def scatter(self, batch: Batch, outputs: Arrays) -> None:
        batch.computed_ns = _clock()
        requests = batch.requests
        rows, height = self._rows(batch)
        split = RowOutputs(outputs, height if self._batched else 0)
        responses = [split.response(r.head, row) for r, row in zip(requests, rows, strict=True)]
        states = [(state, self._given(state, outputs, height)) for state in self.states]
        # nothing can fail any more: a sequence has all its new states, or none
        for state, array in states:
            for request, row in zip(requests, rows, strict=True):
                # a copy: the model may use its memory again, and a view would keep the other rows
                kept = array[row] if self._batched else array
                request.sequence.states[state.input_name] = kept.copy()
        batch.responses += responses
        batch.ended_ns = _clock()

    def _rows(self, batch: Batch) -> tuple[Sequence[int], int]:
        """The row of each request, and how many rows there are."""
        if not self._slotted:
            return range(len(batch.requests)), len(batch.requests)
        rows = [request.sequence.slot for request in batch.requests]
        return rows, max(rows) + 1

    def _with_gaps(self, requests: Sequence[InferRequest], rows: Sequence[int], height: int) -> Arrays:
        """The inputs, with zeros in the rows of no request."""
        parts = [self._plain.gather(Batch([request])) for request in requests]
        return {
            name: _placed([part[name][0] for part in parts], rows, height, first.dtype)
            for name, first in parts[0].items()
        }

    def _state(
        self, state: State, requests: Sequence[InferRequest], rows: Sequence[int], height: int
    ) -> npt.NDArray[Any]:
        values = [value_of(state, request) for request in requests]
        if not self._batched:
            return values[0]
        for request, value in zip(requests, values, strict=True):
            if value.shape != values[0].shape:
                raise ExecutionError(
                    f"state '{state.input_name}' of sequence {request.sequence.id} has shape "
                    f"{list(value.shape)}, another in its batch has {list(values[0].shape)}"
                )
        return _placed(values, rows, height, np.dtype(state.datatype.numpy))

    def _given(self, state: State, outputs: Arrays, height: int) -> npt.NDArray[Any]:
        array = outputs.get(state.output_name)
        if array is None:
            raise ExecutionError(f"the model gave no state '{state.output_name}'")
        if array.dtype != state.datatype.numpy:
            raise ExecutionError(
                f"state '{state.output_name}' has type {array.dtype}, the configuration says "
                f"{state.datatype.name}"
            )
        if self._batched and array.shape[:1] != (height,):
            raise ExecutionError(
                f"state '{state.output_name}' has shape {list(array.shape)}, expected {height} rows"
            )
        return array


def value_of(state: State, request: InferRequest) -> npt.NDArray[Any]:
    """What a request of a sequence gets of a state: what the one before has left, or the beginning."""
    if request.head.parameters.get("sequence_start"):
        return state.initial
    kept: Mapping[str, npt.NDArray[Any]] = request.sequence.states
    return kept.get(state.input_name, state.initial)


def _placed(
    values: Sequence[npt.NDArray[Any]], rows: Sequence[int], height: int, dtype: "np.dtype[Any]"
) -> npt.NDArray[Any]:
    """An array with these rows, and nothing in the others."""
    array = np.full((height, *values[0].shape), b"" if dtype == np.object_ else 0, dtype)
    for row, value in zip(rows, values, strict=True):
        array[row] = value
    return array


def controls_of(config: Any) -> list[Control]:
    """The controls of a validated configuration."""
    controls = []
    for control_input in config.sequence_batching.control_input:
        for control in control_input.control:
            kind = control.DESCRIPTOR.fields_by_name["kind"].enum_type.values_by_number[control.kind].name
            kind = kind.removeprefix("CONTROL_SEQUENCE_")
            name = control_input.name
            if kind == "CORRID":
                datatype = BY_NUMBER[control.data_type]
                none: Any = b"" if datatype.size == 0 else 0
                controls.append(Control(name=name, kind=kind, datatype=datatype, false=none))
                continue
            for field, number in (("int32_false_true", 8), ("fp32_false_true", 11), ("bool_false_true", 1)):
                values = list(getattr(control, field))
                if values:
                    controls.append(
                        Control(
                            name=name, kind=kind, datatype=BY_NUMBER[number], false=values[0], true=values[1]
                        )
                    )
    return controls


def check_correlation_id(model: str, controls: Sequence[Control], correlation_id: int | str) -> None:
    """Raise InvalidRequest for an id that the CORRID control of the model cannot carry."""
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
