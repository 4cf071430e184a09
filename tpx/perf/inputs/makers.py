"""Makers: inputs that are generated or read from the rows of an array file, and the shapes of inputs,
which the user's options complete.
"""

import math
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from tpx.errors import MeasurementError, UsageError
from tpx.perf.clients.model import ModelDescription, TensorDescription, check_names
from tpx.perf.inputs.base import InputSource, InputSpec
from tpx.perf.inputs.values import bf16_bits, check_fit, encode_array, tensor_of_raw
from tpx.perf.settings import Shape
from tpx.protocol.datatypes import BY_NAME
from tpx.protocol.tensors import Array, Tensor, encode_bytes

Dims = tuple[int, ...]
"""Dimensions without the batch dimension; -1 if neither the model nor the user sets the size."""


def resolve_shapes(model: ModelDescription, given: Sequence[Shape], batch_size: int) -> Mapping[str, Dims]:
    """Return the dimensions of each input; the user's `given` shapes set dynamic ones.

    Raises UsageError if a given shape names no input or contradicts the model.
    """
    _check_batch(model, batch_size)
    if not model.inputs:
        raise MeasurementError(
            f"the metadata of model '{model.name}' lists no inputs, so no request can be made for it; say "
            "what they are with --declare NAME:DATATYPE:DIMS, such as --declare x:FP32:1,4"
        )
    wanted = {shape.name: shape.dims for shape in given}
    check_names("--shape", wanted, model, "input")
    for spec in model.inputs:
        if spec.name in wanted:
            text = ",".join(map(str, wanted[spec.name]))
            check_fit(spec, wanted[spec.name], f"--shape {spec.name}:{text}")
    return {spec.name: wanted.get(spec.name, spec.shape) for spec in model.inputs}


def assumed(dims: Dims) -> Dims:
    """Return the dimensions of a generated input, with 1 for each size that is not set."""
    return tuple(1 if d < 0 else d for d in dims)


def assumption(spec: TensorDescription, dims: Dims) -> str:
    """Describe the dimensions that `assumed` sets; empty if it sets none."""
    if -1 not in dims:
        return ""
    text = ",".join(map(str, assumed(dims)))
    return (
        f"input '{spec.name}' has dynamic dimensions {list(spec.shape)}: sending {list(assumed(dims))}; "
        f"choose others with --shape {spec.name}:{text}"
    )


def _check_batch(model: ModelDescription, batch_size: int) -> None:
    if batch_size == 1:
        return
    if model.scheduler == "sequence":
        raise UsageError("can not specify batch size > 1 when using a sequence model")
    if model.max_batch_size == 0:
        open_first = [spec for spec in model.inputs if len(spec.shape) > 1 and spec.shape[0] == -1]
        sizes = (
            f"--shape {s.name}:{','.join(map(str, assumed((batch_size, *s.shape[1:]))))}" for s in open_first
        )
        hint = f"; larger tensors are asked for with {' '.join(sizes)}" if open_first else ""
        raise UsageError(f"can not specify batch size > 1 as the model does not support batching{hint}")
    if batch_size > model.max_batch_size:
        raise UsageError(
            f"-b {batch_size} is more than model '{model.name}' takes "
            f"(max_batch_size: {model.max_batch_size})"
        )


COPIES = 4
"""Memory needed to generate and encode a tensor, as a multiple of its size."""
_LETTERS = np.frombuffer(
    b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ1234567890 .?!", dtype=np.uint8
)
"""The alphabet of perf_analyzer's random strings."""


class Maker(Protocol):
    """Makes one input for every step."""

    steps: int
    """Number of distinct steps; 0 if unlimited."""

    def make(self, step: int) -> Tensor:
        """Return the tensor of a step, without a batch dimension; equal for equal steps."""


def maker_for(spec: TensorDescription, dims: Dims, source: InputSource, settings: InputSpec) -> Maker:
    """Return the maker of an input from `source`. Raises UsageError if it does not suit the input's
    datatype.
    """
    flag = f"--input {source}"
    if source.kind == "file":
        return maker_of_file(spec, dims, source.path, flag)
    if source.kind == "range":
        _check_range(spec, source, flag)
    return Generator(spec, assumed(dims), source, settings)


class Generator:
    """Implements Maker: generates different values for every step, determined by the seed.

    Random floats are in [0, 1) and integers in [0, 127]. perf_analyzer's random bytes, which the source
    `bytes` generates, can instead give a model NaN or an index out of range.
    """

    def __init__(self, spec: TensorDescription, dims: Dims, source: InputSource, settings: InputSpec) -> None:
        _check_size(spec, dims, settings)
        self.steps = 1 if source.kind in ("zero", "ones") and spec.datatype != "BYTES" else 0
        self._spec = spec
        self._dims = dims
        self._source = source
        self._settings = settings
        self._seed = (settings.seed, zlib.crc32(spec.name.encode()))

    def make(self, step: int) -> Tensor:
        spec, dims = self._spec, self._dims
        rng = np.random.default_rng((*self._seed, step))
        count = math.prod(dims)
        if spec.datatype == "BYTES":
            return Tensor(spec.name, "BYTES", dims, self._strings(count, rng))
        kind, size = self._source.kind, count * BY_NAME[spec.datatype].size
        if kind == "zero":
            return Tensor(spec.name, spec.datatype, dims, bytes(size))
        if kind == "bytes":
            return Tensor(spec.name, spec.datatype, dims, rng.bytes(size))
        return Tensor.from_numpy(spec.name, self._values(dims, rng), spec.datatype)

    def _strings(self, count: int, rng: np.random.Generator) -> bytes:
        fixed, length = self._settings.string_data, self._settings.string_length
        if self._source.kind == "ones":
            fixed = "1"
        if fixed is not None:
            return encode_bytes([fixed.encode()] * count)
        if self._source.kind == "bytes":
            return encode_bytes([rng.bytes(length) for _ in range(count)])
        letters = _LETTERS[rng.integers(0, len(_LETTERS), (count, length))]
        return encode_bytes([row.tobytes() for row in letters])

    def _values(self, dims: Dims, rng: np.random.Generator) -> Array:
        source, datatype = self._source, self._spec.datatype
        dtype = BY_NAME[datatype].numpy
        floats = dtype.kind == "f" or datatype == "BF16"
        if source.kind == "ones":
            values: Array = np.ones(dims, np.float32 if floats else dtype)
        elif floats:
            values = np.asarray(rng.random(dims, dtype=np.float64 if dtype.itemsize == 8 else np.float32))
            if source.kind == "range":
                values = source.low + values * (source.high - source.low)
        elif source.kind == "range":
            wide = np.uint64 if dtype == np.uint64 else np.int64
            values = rng.integers(int(source.low), int(source.high), dims, wide, endpoint=True)
        else:
            values = rng.integers(0, 2 if dtype.kind == "b" else 128, dims)
        return bf16_bits(values.astype(np.float32)) if datatype == "BF16" else values.astype(dtype)


def _check_size(spec: TensorDescription, dims: Dims, settings: InputSpec) -> None:
    """Raise UsageError for a tensor that would not fit in memory, counting the copies made while
    encoding it.
    """
    count = math.prod(dims)
    each = settings.string_length if spec.datatype == "BYTES" else BY_NAME[spec.datatype].size
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if count * max(each, 1) > memory // COPIES:
        raise UsageError(
            f"input '{spec.name}' of shape {list(dims)} would take {count * each} bytes, and this machine "
            f"can hold {memory // COPIES} (a quarter of its {memory >> 20} MiB of memory)"
        )


def _check_range(spec: TensorDescription, source: InputSource, flag: str) -> None:
    dtype = BY_NAME[spec.datatype].numpy
    if spec.datatype == "BYTES":
        raise UsageError(f"{flag}: the input is BYTES, which has no range; see --string-data")
    if dtype.kind == "f" or spec.datatype == "BF16":
        return
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if not (isinstance(source.low, int) and isinstance(source.high, int)):
        raise UsageError(f"{flag}: the bounds of {spec.datatype} have to be integers")
    if source.low < low or source.high > high:
        raise UsageError(f"{flag}: the range does not fit into {spec.datatype} ({low} to {high})")


def maker_of_file(spec: TensorDescription, dims: Dims, path: Path, where: str = "") -> Maker:
    """Return the maker of an input from a file: a numpy array, raw bytes, or one BYTES element per line."""
    where = f"{where or path}, tensor '{spec.name}'"
    try:
        if path.suffix == ".npy":
            return Rows(spec, dims, _array(path, where), where)
        data = path.read_bytes()
    except OSError as exc:
        raise UsageError(f"{where}: cannot read {path}: {exc.strerror or exc}") from exc
    if not data:
        raise UsageError(f"{where}: file '{path}' is empty")
    if spec.datatype == "BYTES":
        data = encode_bytes([line.removesuffix(b"\r") for line in data.removesuffix(b"\n").split(b"\n")])
    return Same(tensor_of_raw(spec, data, dims, where))


def _array(path: Path, where: str) -> Array:
    try:
        # mapped, so that rows are read on demand; a pickle could run code
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as exc:
        raise UsageError(
            f"{where}: {path} is not a NumPy array that can be read without pickle: {exc}"
        ) from exc
    return array


class Same:
    """Implements Maker: the same tensor in every step."""

    def __init__(self, tensor: Tensor) -> None:
        self.steps = 1
        self._tensor = tensor

    def make(self, step: int) -> Tensor:  # noqa: ARG002 (all are the same)
        return self._tensor


class Rows:
    """Implements Maker: an array of the input's shape, or with an additional first dimension whose rows
    are steps.
    """

    def __init__(self, spec: TensorDescription, dims: Dims, array: Array, where: str) -> None:
        self._spec = spec
        self._where = where
        self._rows = array if array.ndim == len(dims) + 1 else array[np.newaxis]
        self.steps = len(self._rows)
        if not self.steps:
            raise UsageError(f"{where}: the array has no rows")
        given = TensorDescription(name=spec.name, datatype=spec.datatype, shape=dims)
        check_fit(given, self._rows.shape[1:], where)
        encode_array(self._rows[0], spec.datatype, where)

    def make(self, step: int) -> Tensor:
        row = self._rows[step % self.steps]
        data = encode_array(np.asarray(row), self._spec.datatype, self._where)
        return Tensor(self._spec.name, self._spec.datatype, row.shape, data)
