"""Makers: inputs that are generated or read from the rows of an array file, and the shapes of inputs,
which the user's options complete.
"""

import math
import os
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
            f"the metadata of model '{model.name}' lists no inputs, so no request can be made for it; "
            "describe them with --declare NAME:DATATYPE:DIMS, such as --declare x:FP32:1,4"
        )
    wanted = {shape.name: shape.dims for shape in given}
    check_names("--shape", wanted, model, "input")
    for spec in model.inputs:
        if spec.name in wanted:
            text = ",".join(map(str, wanted[spec.name]))
            check_fit(spec, wanted[spec.name], f"--shape {spec.name}:{text}")
    return {spec.name: wanted.get(spec.name) or _usual(spec) for spec in model.inputs}


def _usual(spec: TensorDescription) -> Dims:
    """Return the dimensions that the model itself names, if they complete its dynamic ones."""
    completes = len(spec.usual) == len(spec.shape) and all(
        own in (-1, size) for own, size in zip(spec.shape, spec.usual, strict=True)
    )
    return spec.usual if completes else spec.shape


def assumed(dims: Dims) -> Dims:
    """Return the dimensions of a generated input, with 1 for each size that is not set."""
    return tuple(1 if d < 0 else d for d in dims)


def shape_flag(spec: TensorDescription, dims: Dims) -> str:
    """Return the option that sets an input's dynamic dimensions, with names in place of the sizes."""
    free = [i for i, size in enumerate(dims) if size < 0]
    if len(free) == 2 and free[1] == free[0] + 1 and len(dims) > 2:
        names = ["H", "W"]
    else:
        names = ["N"] if len(free) == 1 else [f"N{i}" for i in range(1, len(free) + 1)]
    words = [str(size) for size in dims]
    for i, name in zip(free, names, strict=True):
        words[i] = name
    return f"--shape {spec.name}:{','.join(words)}"


def check_shapes(model: ModelDescription, generated: Sequence[tuple[TensorDescription, Dims]]) -> None:
    """Raise UsageError if a generated input has dimensions of a size that nobody has named.

    A model that is measured with tensors of size 1 answers quickly and with errors: an image of one pixel.
    """
    unknown = [(spec, dims) for spec, dims in generated if -1 in dims]
    if unknown:
        inputs = " and ".join(f"'{spec.name}' {list(spec.shape)}" for spec, _ in unknown)
        flags = " ".join(shape_flag(spec, dims) for spec, dims in unknown)
        raise UsageError(
            f"model '{model.name}' has dynamic dimensions, and nothing names their sizes: input {inputs}. "
            f"Give {flags}, data with --input-data, or --assume-shapes to send 1 for each"
        )


def explain_shape(spec: TensorDescription, dims: Dims, given: Collection[str]) -> tuple[str, bool]:
    """Return where the sizes of an input's dynamic dimensions come from, and whether they are a guess.

    The text is empty if the model has none, or the user `given` them.
    """
    if spec.name in given or -1 not in spec.shape:
        return "", False
    sent = ",".join(map(str, assumed(dims)))
    if -1 in dims:
        flag = shape_flag(spec, dims)
        return f"the shape of input '{spec.name}' is a guess: [{sent}] was sent; name it with {flag}", True
    source = f"the shape of the model's {spec.usual_source}"
    return f"input '{spec.name}' {list(spec.shape)}: sending [{sent}], {source}", False


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
        hint = f"; request larger tensors with {' '.join(sizes)}" if open_first else ""
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


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes one input for every step.

    `steps` is the number of distinct steps, 0 if unlimited. `make` returns the tensor of a step, without
    a batch dimension; equal for equal steps.
    """

    steps: int
    make: Callable[[int], Tensor]


def maker_for(spec: TensorDescription, dims: Dims, source: InputSource, settings: InputSpec) -> Maker:
    """Return the maker of an input: of a file, or of different values for every step by the seed.

    Random floats are in [0, 1) and integers in [0, 127]. perf_analyzer's random bytes, which the source
    `bytes` generates, can instead give a model NaN or an index out of range. Raises UsageError if
    `source` does not suit the input's datatype.
    """
    flag = f"--input {source}"
    if source.kind == "file":
        return maker_of_file(spec, dims, source.path, flag)
    if source.kind == "range":
        _check_range(spec, source, flag)
    dims = assumed(dims)
    count, datatype = math.prod(dims), BY_NAME[spec.datatype]
    # a tensor is copied while it is encoded
    each = settings.string_length if spec.datatype == "BYTES" else datatype.size
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if count * max(each, 1) > memory // COPIES:
        raise UsageError(
            f"input '{spec.name}' of shape {list(dims)} would take {count * each} bytes, and this machine "
            f"can hold {memory // COPIES} (a quarter of its {memory >> 20} MiB of memory)"
        )
    seed = (settings.seed, zlib.crc32(spec.name.encode()))

    def make(step: int) -> Tensor:
        rng = np.random.default_rng((*seed, step))
        if spec.datatype == "BYTES":
            return Tensor(spec.name, "BYTES", dims, _make_strings(count, source, settings, rng))
        if source.kind == "zero":
            return Tensor(spec.name, spec.datatype, dims, bytes(count * datatype.size))
        if source.kind == "bytes":
            return Tensor(spec.name, spec.datatype, dims, rng.bytes(count * datatype.size))
        return Tensor.from_numpy(spec.name, _make_numbers(spec.datatype, dims, source, rng), spec.datatype)

    return Maker(1 if source.kind in ("zero", "ones") and spec.datatype != "BYTES" else 0, make)


def _make_strings(count: int, source: InputSource, settings: InputSpec, rng: "np.random.Generator") -> bytes:
    length = settings.string_length
    fixed = "1" if source.kind == "ones" else settings.string_data
    if fixed is not None:
        return encode_bytes([fixed.encode()] * count)
    if source.kind == "bytes":
        return encode_bytes([rng.bytes(length) for _ in range(count)])
    letters = _LETTERS[rng.integers(0, len(_LETTERS), (count, length))]
    return encode_bytes([row.tobytes() for row in letters])


def _make_numbers(datatype: str, dims: Dims, source: InputSource, rng: "np.random.Generator") -> Array:
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


def _check_range(spec: TensorDescription, source: InputSource, flag: str) -> None:
    dtype = BY_NAME[spec.datatype].numpy
    if spec.datatype == "BYTES":
        raise UsageError(f"{flag}: the input is BYTES, which has no range; see --string-data")
    if dtype.kind == "f" or spec.datatype == "BF16":
        return
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if not (isinstance(source.low, int) and isinstance(source.high, int)):
        raise UsageError(f"{flag}: the bounds of {spec.datatype} must be integers")
    if source.low < low or source.high > high:
        raise UsageError(f"{flag}: the range does not fit into {spec.datatype} ({low} to {high})")


def maker_of_file(spec: TensorDescription, dims: Dims, path: Path, where: str = "") -> Maker:
    """Return the maker of an input from a file: a numpy array, raw bytes, or one BYTES element per line."""
    where = f"{where or path}, tensor '{spec.name}'"
    try:
        if path.suffix == ".npy":
            return _make_row_reader(spec, dims, path, where)
        data = path.read_bytes()
    except OSError as exc:
        raise UsageError(f"{where}: cannot read {path}: {exc.strerror or exc}") from exc
    if not data:
        raise UsageError(f"{where}: file '{path}' is empty")
    if spec.datatype == "BYTES":
        data = encode_bytes([line.removesuffix(b"\r") for line in data.removesuffix(b"\n").split(b"\n")])
    tensor = tensor_of_raw(spec, data, dims, where)
    return Maker(1, lambda _: tensor)


def _make_row_reader(spec: TensorDescription, dims: Dims, path: Path, where: str) -> Maker:
    """Return the maker of an array of the input's shape, or with a first dimension whose rows are steps."""
    try:
        # mapped, so that rows are read on demand; a pickle could run code
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as exc:
        raise UsageError(
            f"{where}: {path} is not a NumPy array that can be read without pickle: {exc}"
        ) from exc
    rows = array if array.ndim == len(dims) + 1 else array[np.newaxis]
    if not len(rows):
        raise UsageError(f"{where}: the array has no rows")
    given = TensorDescription(name=spec.name, datatype=spec.datatype, shape=dims)
    check_fit(given, rows.shape[1:], where)

    def make(step: int) -> Tensor:
        row = np.asarray(rows[step % len(rows)])
        return Tensor(spec.name, spec.datatype, row.shape, encode_array(row, spec.datatype, where))

    make(0)  # raises for an array that the datatype cannot hold
    return Maker(len(rows), make)
