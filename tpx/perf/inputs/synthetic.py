"""Inputs made by us: zeros, or random values that a model can compute with."""

import math

import numpy as np
import numpy.typing as npt

from tpx.perf.clients.model import ModelDescription, TensorSpec
from tpx.perf.inputs.base import InputSettings
from tpx.protocol.datatypes import BY_NAME
from tpx.protocol.tensors import Tensor, encode_bytes

_LETTERS = np.frombuffer(
    b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ1234567890 .?!", dtype=np.uint8
)
"""The alphabet of perf_analyzer's random strings."""


def make_inputs(
    model: ModelDescription, shapes: dict[str, tuple[int, ...]], settings: InputSettings
) -> list[Tensor]:
    """One tensor per input of the model.

    Random floats lie in [0, 1), integers in [0, 127], so that no model meets NaN or an index out of range
    as it does with perf_analyzer's random bytes. BYTES are random strings also for zero, as perf_analyzer
    has it. The same seed gives the same tensors.
    """
    rng = np.random.default_rng(settings.seed)
    return [_make(spec, shapes[spec.name], settings, rng) for spec in model.inputs]


def _make(
    spec: TensorSpec, shape: tuple[int, ...], settings: InputSettings, rng: np.random.Generator
) -> Tensor:
    if spec.datatype == "BYTES":
        return Tensor(spec.name, "BYTES", shape, _strings(math.prod(shape), settings, rng))
    if settings.kind == "zero":
        return Tensor(spec.name, spec.datatype, shape, bytes(math.prod(shape) * BY_NAME[spec.datatype].size))
    return Tensor.from_numpy(spec.name, _random(spec.datatype, shape, rng), spec.datatype)


def _strings(count: int, settings: InputSettings, rng: np.random.Generator) -> bytes:
    if settings.string_data is not None:
        return encode_bytes([settings.string_data.encode()] * count)
    letters = _LETTERS[rng.integers(0, len(_LETTERS), (count, settings.string_length))]
    return encode_bytes([row.tobytes() for row in letters])


def _random(datatype: str, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[np.generic]:
    if datatype == "BF16":
        bits: npt.NDArray[np.uint32] = rng.random(shape, dtype=np.float32).view(np.uint32)
        return (bits >> 16).astype("<u2")
    dtype = BY_NAME[datatype].numpy
    if dtype.kind == "f":
        return rng.random(shape, dtype=np.float32).astype(dtype)
    return rng.integers(0, 2 if dtype.kind == "b" else 128, shape).astype(dtype)
