"""Comparing responses with the outputs that the data expects: exactly, or within a tolerance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpx.errors import InvalidRequest
from tpx.perf.inputs.base import EXACT, Tolerance
from tpx.perf.inputs.steps import named
from tpx.perf.inputs.values import bf16_floats, decode_strings, shown
from tpx.protocol.datatypes import BY_NAME
from tpx.protocol.tensors import Array, Tensor


@dataclass(frozen=True, slots=True)
class Expectation:
    """The expected outputs of one request."""

    where: str
    outputs: tuple[Tensor, ...]


class Validator:
    """Implements Check: every response must have each expected output; other outputs are ignored."""

    def __init__(self, expected: Mapping[int, Expectation], tolerance: Tolerance = EXACT) -> None:
        """`expected` is keyed by step number; steps not in it are not checked."""
        self._expected = expected
        self._tolerance = tolerance

    def __call__(self, step: int, response: Any) -> str:
        expectation = self._expected.get(step)
        if expectation is None:
            return ""
        try:
            wrong = self._wrong(expectation.outputs, response)
        except (InvalidRequest, KeyError, TypeError, ValueError) as exc:
            wrong = f"the response cannot be read: {exc}"
        return f"{expectation.where}: {wrong}" if wrong else ""

    def _wrong(self, expected: Sequence[Tensor], response: Any) -> str:
        from tpx.perf.capture import parts_of, read_outputs  # imported late: imports every transport

        answers = [tensors for tensors in read_outputs(parts_of(response)) if tensors]
        if not answers:
            return "the response has no outputs"
        for tensors in answers:
            outputs = named(tensors)
            for tensor in expected:
                wrong = difference(tensor, outputs.get(tensor.name), self._tolerance)
                if wrong:
                    return f"output '{tensor.name}': {wrong}"
        return ""


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
    wanted, found = _values(expected), _values(actual)
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


def _values(tensor: Tensor) -> Array:
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
