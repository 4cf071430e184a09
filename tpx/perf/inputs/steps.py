"""Steps of the data: reading, stacking several into one request, and comparing responses with them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from tpx.errors import InvalidRequest, UsageError
from tpx.options import nearest
from tpx.perf.clients.model import ModelDescription, TensorDescription
from tpx.perf.clients.openai import DELAY, SESSION
from tpx.perf.inputs.base import EXACT, Tolerance
from tpx.perf.inputs.makers import Dims, Maker
from tpx.perf.inputs.values import bf16_floats, decode_strings, shown, tensor_of_json
from tpx.protocol.datatypes import BY_NAME
from tpx.protocol.json_values import JsonObject, JsonValue
from tpx.protocol.tensors import Array, Buffer, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The inputs of one inference and its expected outputs, without a batch dimension.

    `where` identifies the step in messages. Optional inputs may be missing.
    """

    where: str
    inputs: tuple[Tensor, ...]
    expected: tuple[Tensor, ...] = ()
    timestamp_ns: int | None = None


@dataclass(frozen=True, slots=True)
class DataStream:
    """Steps in order; `make` builds one on access, so that a stream need not fit in memory."""

    length: int
    make: Callable[[int], Step]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Step:
        return self.make(index)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """Streams of steps; `notices` list assumptions. `made` is True for generated data, of which one
    step can be repeated any number of times.
    """

    streams: tuple[DataStream, ...]
    made: bool
    notices: tuple[str, ...] = ()
    guesses: tuple[str, ...] = ()

    @property
    def steps(self) -> DataStream:
        """All steps as one stream, in the order in which models without sequences receive them."""
        if len(self.streams) == 1:
            return self.streams[0]
        places = [(stream, i) for stream in self.streams for i in range(len(stream))]
        return DataStream(len(places), lambda number: places[number][0][places[number][1]])


def stacked(
    parts: Sequence[Sequence[Tensor]],
    specs: Sequence[TensorDescription],
    places: Sequence[str],
    *,
    batched: bool,
) -> list[Tensor]:
    """Combine the tensors of several steps into those of one request, with a batch dimension if the
    model has one.

    `parts` are the tensors of each step, `places` their origins for messages. A shape tensor is taken
    from the first step. Raises UsageError if the steps cannot be combined.
    """
    out = []
    by_step = [named(tensors) for tensors in parts]
    for spec in specs:
        present = [spec.name in tensors for tensors in by_step]
        if not any(present):
            continue
        if not all(present):
            raise UsageError(
                f"{places[present.index(False)]}: tensor '{spec.name}' is missing, which another step of the "
                f"same batch has ({places[present.index(True)]})"
            )
        tensors = [tensors[spec.name] for tensors in by_step]
        first = tensors[0]
        for tensor, where in zip(tensors, places, strict=True):
            if tensor.shape != first.shape:
                raise UsageError(
                    f"{where}, tensor '{spec.name}': the shape {list(tensor.shape)} differs from "
                    f"{list(first.shape)} of another step of the same batch ({places[0]})"
                )
            if spec.shape_tensor and bytes(tensor.data) != bytes(first.data):
                raise UsageError(
                    f"{where}, tensor '{spec.name}': a shape tensor must be the same in all steps of a "
                    f"batch ({places[0]})"
                )
        if batched and not spec.shape_tensor:
            data: Buffer = first.data if len(tensors) == 1 else b"".join(tensor.data for tensor in tensors)
            first = Tensor(spec.name, spec.datatype, (len(tensors), *first.shape), data)
        out.append(first)
    return out


def named(tensors: Sequence[Tensor]) -> Mapping[str, Tensor]:
    """Return a mapping of tensors by name."""
    return {tensor.name: tensor for tensor in tensors}


MODEL, TIMESTAMP, PAYLOAD, MESSAGES = "model", "timestamp", "payload", "message_generator"
"""Members of a step besides its tensors: a model's name, which is ignored; the time when the step is
due; a whole request for a service that takes JSON.
"""


@dataclass(frozen=True, slots=True)
class StepReader:
    """Reads the steps of one model's data; `makers` provide the inputs given with --input."""

    model: ModelDescription
    dims: Mapping[str, Dims]
    makers: Mapping[str, Maker]

    def step(self, value: JsonValue, expected: JsonValue, where: str, number: int) -> Step:
        """Read a step and its expected outputs, if any. Raises UsageError that starts with `where`."""
        known = [spec.name for spec in self.model.inputs]
        entries = _check_entries(value, known, where)
        inputs = [self._read_input(spec, entries, where, number) for spec in self.model.inputs]
        return Step(
            where=where,
            inputs=tuple(tensor for tensor in inputs if tensor is not None),
            expected=() if expected is None else self._read_expected(expected, f"{where}, validation_data"),
            timestamp_ns=None if TIMESTAMP in known else _parse_timestamp(entries.get(TIMESTAMP), where),
        )

    def _read_input(
        self, spec: TensorDescription, entries: JsonObject, where: str, number: int
    ) -> Tensor | None:
        maker = self.makers.get(spec.name)
        if spec.name not in entries:
            if maker is not None:
                return maker.make(number)
            if spec.optional:
                return None
            raise UsageError(f"{where}: missing tensor {spec.name}")
        if maker is not None:
            raise UsageError(f"{where}: tensor '{spec.name}' is given here and by --input")
        value = entries[spec.name]
        if spec.name in (PAYLOAD, MESSAGES):
            value = _write_objects(value, raw=spec.name == MESSAGES)
        return tensor_of_json(spec, value, self.dims[spec.name], where)

    def _read_expected(self, value: JsonValue, where: str) -> tuple[Tensor, ...]:
        outputs = self.model.outputs
        entries = _check_entries(value, [spec.name for spec in outputs], where)
        # an output with several dynamic dimensions is compared flat
        return tuple(
            tensor_of_json(spec, entries[spec.name], spec.shape if spec.shape.count(-1) < 2 else (-1,), where)
            for spec in outputs
            if spec.name in entries
        )


def _write_objects(value: JsonValue, *, raw: bool) -> JsonValue:
    """Return the JSON objects of an input as texts; with `raw`, those with only a `b64` stay as they are."""
    if raw and _is_raw(value):
        return value
    items = value if isinstance(value, list) else [value]
    return [
        orjson.dumps(item).decode() if isinstance(item, dict) and not (raw and _is_raw(item)) else item
        for item in items
    ]


def _is_raw(value: JsonValue) -> bool:
    return isinstance(value, dict) and set(value) == {"b64"}


def _check_entries(value: JsonValue, known: Sequence[str], where: str) -> JsonObject:
    if not isinstance(value, dict):
        raise UsageError(f"{where}: a step must be an object of tensors, got {type(value).__name__}")
    for name in value:
        if name in known or name in (MODEL, TIMESTAMP):
            continue
        if name == PAYLOAD:
            raise UsageError(f"{where}: 'payload' is for services that take JSON (--service-kind openai)")
        if name in (SESSION.name, DELAY.name):
            raise UsageError(f"{where}: '{name}' belongs to a turn of a conversation (--session-concurrency)")
        raise UsageError(
            f"{where}: The input or output '{name}' is not found in the model configuration"
            f"{nearest(name, known)} (has: {', '.join(known)})"
        )
    return value


def _parse_timestamp(value: JsonValue, where: str) -> int | None:
    """Convert milliseconds, alone or in a list, to ns."""
    if value is None:
        return None
    number = value[0] if isinstance(value, list) and len(value) == 1 else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < 1e15:
        raise UsageError(f"{where}: a timestamp is a number of milliseconds >= 0, in a list: [12.5]")
    return round(number * 1e6)


@dataclass(frozen=True, slots=True)
class Expectation:
    """The expected outputs of one request."""

    where: str
    outputs: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Validator:
    """Implements Check: every response must have each expected output; other outputs are ignored."""

    expected: Mapping[int, Expectation]
    """Expectations by step number; steps not in it are not checked."""
    tolerance: Tolerance

    def __call__(self, row: int, step: int, response: Any) -> str:  # noqa: ARG002 (the step has the outputs)
        expectation = self.expected.get(step)
        if expectation is None:
            return ""
        from tpx.perf.capture import parts_of, read_outputs  # imported late: imports every transport

        try:
            answers = [named(tensors) for tensors in read_outputs(parts_of(response)) if tensors]
            compared = (
                (tensor.name, difference(tensor, outputs.get(tensor.name), self.tolerance))
                for outputs in answers
                for tensor in expectation.outputs
            )
            wrong = "" if answers else "the response has no outputs"
            wrong = next((f"output '{name}': {why}" for name, why in compared if why), wrong)
        except (InvalidRequest, KeyError, TypeError, ValueError) as exc:
            wrong = f"the response cannot be read: {exc}"
        return f"{expectation.where}: {wrong}" if wrong else ""


def difference(expected: Tensor, actual: Tensor | None, tolerance: Tolerance = EXACT) -> str:
    """Describe how an output differs from the expected one; empty if it does not. The numbers of
    elements are compared, not the shapes.
    """
    if actual is None:
        return "it is not in the response"
    if actual.datatype != expected.datatype:
        return f"it is {actual.datatype}, expected {expected.datatype}"
    if bytes(actual.data) == bytes(expected.data):
        return ""
    wanted, found = _flatten_values(expected), _flatten_values(actual)
    if len(wanted) != len(found):
        return f"Output size doesn't match expected size: {len(found)} elements, expected {len(wanted)}"
    if expected.datatype == "BYTES":
        bad = np.array([a != b for a, b in zip(found, wanted, strict=True)])
    elif tolerance == EXACT:
        # compare bits: -0 differs from 0, and NaNs differ unless their bits are equal
        bits = np.dtype(f"V{BY_NAME[expected.datatype].size}")
        bad = np.frombuffer(actual.data, bits) != np.frombuffer(expected.data, bits)
    else:
        with np.errstate(invalid="ignore"):
            bad = ~np.isclose(found, wanted, tolerance.relative, tolerance.absolute, equal_nan=True)
    if not bad.any():
        return ""
    first = int(np.argmax(bad))
    return (
        f"Output doesn't match expected output: element {first} is {shown(found[first])}, expected "
        f"{shown(wanted[first])} ({int(bad.sum())} of {len(bad)} differ)"
    )


def _flatten_values(tensor: Tensor) -> Array:
    """Return a flat array; BF16 is converted to floats, and FP16 and FP32 to float64."""
    if tensor.datatype == "BYTES":
        elements = decode_strings(tensor.data)
        out = np.empty(len(elements), dtype=np.object_)
        out[:] = elements
        return out
    dtype = BY_NAME[tensor.datatype].numpy
    flat: Array = np.frombuffer(tensor.data, dtype)
    if tensor.datatype == "BF16":
        return bf16_floats(flat)
    return flat.astype(np.float64) if dtype.kind == "f" else flat
