"""Properties of an engine, read once: its tensors, its optimization profiles, and the choice of a profile.

Only names that the Python APIs of TensorRT 10 and 11 have in common are used.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpx.errors import ConfigError, InvalidRequest, LoadError
from tpx.serving.backends.model_tensors import ModelTensor

if TYPE_CHECKING:
    import tensorrt


_DATATYPES = {name: name for name in ("BF16", "INT8", "INT32", "INT64", "UINT8", "BOOL")}
_DATATYPES |= {"FLOAT": "FP32", "HALF": "FP16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeRange:
    """Shapes of an input that a profile accepts: the smallest, the optimal and the largest."""

    least: tuple[int, ...]
    best: tuple[int, ...]
    most: tuple[int, ...]


class EngineTensor(ModelTensor, frozen=True, kw_only=True):
    """An input or output of an engine."""

    is_input: bool
    is_shape: bool = False
    """True if its values determine the shapes of other tensors; such a tensor is in host memory."""
    linear: bool = True
    """True if it is stored in row-major order."""
    spans: tuple[ShapeRange, ...] = ()
    """Accepted shapes of an input, by profile."""
    values: tuple[ShapeRange | None, ...] = ()
    """Accepted values of a shape input, by profile; None if the engine does not specify them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """All tensors of an engine."""

    inputs: tuple[EngineTensor, ...]
    outputs: tuple[EngineTensor, ...]
    profiles: int
    """Number of optimization profiles."""

    @property
    def has_shape_tensors(self) -> bool:
        return any(each.is_shape for each in (*self.inputs, *self.outputs))


def facts_of(engine: "tensorrt.ICudaEngine", model: str) -> EngineFacts:
    """Read an engine. Raises LoadError for a datatype that the protocol lacks."""
    profiles = engine.num_optimization_profiles
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    found = [_describe_tensor(engine, model, name, profiles) for name in names]
    return EngineFacts(
        inputs=tuple(each for each in found if each.is_input),
        outputs=tuple(each for each in found if not each.is_input),
        profiles=profiles,
    )


def _describe_tensor(engine: "tensorrt.ICudaEngine", model: str, name: str, profiles: int) -> EngineTensor:
    kind = engine.get_tensor_dtype(name).name
    if kind not in _DATATYPES:
        raise LoadError(f"'{name}' of model '{model}' has TensorRT's type {kind}, which no client can send")
    is_input = engine.get_tensor_mode(name).name == "INPUT"
    is_shape = bool(engine.is_shape_inference_io(name))
    indexes = range(profiles if is_input else 0)
    spans = [_make_range(engine.get_tensor_profile_shape(name, index)) for index in indexes]
    # the binding takes the profile first, contrary to its documentation
    values = [engine.get_tensor_profile_values(index, name) for index in indexes if is_shape]
    return EngineTensor(
        name=name,
        datatype=_DATATYPES[kind],
        shape=tuple(engine.get_tensor_shape(name)),
        is_input=is_input,
        is_shape=is_shape,
        linear=engine.get_tensor_format(name).name == "LINEAR",
        spans=tuple(spans),
        values=tuple(_make_range(each) if each else None for each in values),
    )


def _make_range(shapes: Any) -> ShapeRange:
    least, best, most = (tuple(shape) for shape in shapes)
    return ShapeRange(least=least, best=best, most=most)


Shapes = Mapping[str, Sequence[int]]


def profiles_of(model: str, written: Sequence[str], count: int) -> tuple[int, ...]:
    """Return the profiles that an instance group names, or the first one. Raises ConfigError."""
    numbers = []
    for text in written:
        if not (text.isascii() and text.isdigit() and int(text) < count):
            raise ConfigError(
                f"unable to autofill for '{model}', configuration specified invalid profile {text} . Number "
                f"of profiles supported by TensorRT engine: {count}",
                field="instance_group",
            )
        numbers.append(int(text))
    return tuple(dict.fromkeys(numbers)) or (0,)


def max_batch_size(facts: EngineFacts, profiles: Sequence[int]) -> int:
    """Return the maximum rows that any of these profiles accepts; 0 if a first dimension is not variable."""
    if facts.has_shape_tensors:
        return 0
    if not all(tensor.shape[:1] == (-1,) for tensor in (*facts.inputs, *facts.outputs)):
        return 0
    return max(min(each.spans[index].most[0] for each in facts.inputs) for index in profiles)


def suiting(facts: EngineFacts, profiles: Sequence[int], shapes: Shapes, model: str) -> int:
    """Return the fitting profile with the nearest optimal shapes. Raises InvalidRequest for the first one."""
    misfits = [_find_misfit(facts, index, shapes) for index in profiles]
    fitting = [index for index, misfit in zip(profiles, misfits, strict=True) if misfit is None]
    if len(fitting) == 1:
        return fitting[0]
    if misfits[0] is None or fitting:
        return min(fitting, key=lambda index: _measure_distance(facts, index, shapes))
    each, why = misfits[0]
    raise InvalidRequest(
        f"request specifies invalid shape for input '{each.name}' for {model}. Error details: {why}"
    )


def check_dims(
    tensor: EngineTensor, profile: int, dims: Sequence[int], model: str, *, batching: bool
) -> None:
    """Raise ConfigError if no request with the configured dims could fit a profile."""
    start = 1 if batching else 0
    why = misfit_of(tensor.spans[profile], [-1] * start + list(dims), start)
    if why:
        raise ConfigError(
            f"model configuration specified invalid shape for input '{tensor.name}' for model {model}. Error "
            f"details: {why}"
        )


def check_values(tensor: EngineTensor, profile: int, values: Sequence[int], model: str) -> None:
    """Raise InvalidRequest if the profile does not accept a shape tensor's values."""
    span = tensor.values[profile]
    if span is None:
        return
    if len(values) != len(span.least):
        raise InvalidRequest(
            f"request specifies invalid shape values for input '{tensor.name}' for {model}. Error details: "
            f"mismatch between the number of shape values. Expecting {len(span.least)}. Got {len(values)}"
        )
    for index, (value, least, most) in enumerate(zip(values, span.least, span.most, strict=True)):
        if not least <= value <= most:
            raise InvalidRequest(
                f"request specifies invalid shape values for input '{tensor.name}' for {model}. Error "
                f"details: The shape value at index {index} is expected to be in range from {least} to "
                f"{most}, Got: {value}"
            )


def misfit_of(span: ShapeRange, shape: Sequence[int], start: int = 0) -> str:
    """Return why a shape does not fit from dimension `start` on, or an empty string; -1 always fits."""
    if len(shape) != len(span.most):
        expected, received = len(span.most) - start, len(shape) - start
        return f"model expected {expected} dimensions but received {received} dimensions"
    for index in range(start, len(shape)):
        least, most, size = span.least[index], span.most[index], shape[index]
        if size != -1 and not least <= size <= most:
            return (
                f"model expected the shape of dimension {index - start} to be between {least} and {most} but "
                f"received {size}"
            )
    return ""


def _find_misfit(facts: EngineFacts, profile: int, shapes: Shapes) -> tuple[EngineTensor, str] | None:
    for each in facts.inputs:
        if not each.is_shape:
            why = misfit_of(each.spans[profile], shapes[each.name])
            if why:
                return each, why
    return None


def _measure_distance(facts: EngineFacts, profile: int, shapes: Shapes) -> int:
    """Return the distance of shapes from a profile's optimal ones (Triton: GetMostOptimizedProfile)."""
    return sum(
        abs(size - best)
        for each in facts.inputs
        if not each.is_shape
        for size, best in zip(shapes[each.name], each.spans[profile].best, strict=True)
    )
