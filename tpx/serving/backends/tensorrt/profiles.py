"""Optimization profiles: which of them an instance has, how many rows they take, which one suits a batch."""

from collections.abc import Mapping, Sequence

from tpx.errors import ConfigError, InvalidRequest
from tpx.serving.backends.tensorrt.facts import EngineFacts, EngineTensor, Span

Shapes = Mapping[str, Sequence[int]]


def profiles_of(model: str, written: Sequence[str], there: int) -> tuple[int, ...]:
    """The profiles that an instance group names, or the first. Raises ConfigError for one that is missing."""
    numbers = []
    for text in written:
        if not (text.isascii() and text.isdigit() and int(text) < there):
            raise ConfigError(
                f"unable to autofill for '{model}', configuration specified invalid profile {text} . Number "
                f"of profiles supported by TensorRT engine: {there}"
            )
        numbers.append(int(text))
    return tuple(dict.fromkeys(numbers)) or (0,)


def max_batch_size(facts: EngineFacts, profiles: Sequence[int]) -> int:
    """The most rows that one of these profiles takes; 0 where not every tensor has a first dimension that
    varies."""
    if facts.has_shape_tensors:
        return 0
    tensors = [each.tensor for each in (*facts.inputs, *facts.outputs)]
    if not all(tensor.shape[:1] == (-1,) for tensor in tensors):
        return 0
    return max(min(each.spans[index].most[0] for each in facts.inputs) for index in profiles)


def suiting(facts: EngineFacts, profiles: Sequence[int], shapes: Shapes, model: str) -> int:
    """The profile that takes these shapes and was made for the nearest ones.

    Raises InvalidRequest that says what the first profile takes.
    """
    if len(profiles) == 1:
        check_shapes(facts, profiles[0], shapes, model)
        return profiles[0]
    fitting = [index for index in profiles if _misfit(facts, index, shapes) is None]
    if not fitting:
        check_shapes(facts, profiles[0], shapes, model)
    return min(fitting, key=lambda index: _distance(facts, index, shapes))


def check_shapes(facts: EngineFacts, profile: int, shapes: Shapes, model: str) -> None:
    """Raise InvalidRequest for the first input whose shape the profile does not take."""
    misfit = _misfit(facts, profile, shapes)
    if misfit is not None:
        each, why = misfit
        raise InvalidRequest(
            f"request specifies invalid shape for input '{each.name}' for {model}. Error details: {why}"
        )


def check_dims(
    tensor: EngineTensor, profile: int, dims: Sequence[int], model: str, *, batching: bool
) -> None:
    """Raise ConfigError where no request of the configured dims could fit a profile."""
    start = 1 if batching else 0
    why = misfit_of(tensor.spans[profile], [-1] * start + list(dims), start)
    if why:
        raise ConfigError(
            f"model configuration specified invalid shape for input '{tensor.name}' for model {model}. Error "
            f"details: {why}"
        )


def check_values(tensor: EngineTensor, profile: int, values: Sequence[int], model: str) -> None:
    """Raise InvalidRequest where a shape tensor's values are not what the profile takes."""
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


def misfit_of(span: Span, shape: Sequence[int], start: int = 0) -> str:
    """Return what is wrong with a shape, from dimension `start` on; empty where it fits. -1 fits
    everywhere."""
    if len(shape) != len(span.most):
        return (
            f"model expected {len(span.most) - start} dimensions but received {len(shape) - start} dimensions"
        )
    for index in range(start, len(shape)):
        least, most, size = span.least[index], span.most[index], shape[index]
        if size != -1 and not least <= size <= most:
            return (
                f"model expected the shape of dimension {index - start} to be between {least} and {most} but "
                f"received {size}"
            )
    return ""


def _misfit(facts: EngineFacts, profile: int, shapes: Shapes) -> tuple[EngineTensor, str] | None:
    for each in facts.inputs:
        if not each.is_shape:
            why = misfit_of(each.spans[profile], shapes[each.name])
            if why:
                return each, why
    return None


def _distance(facts: EngineFacts, profile: int, shapes: Shapes) -> int:
    """How far shapes are from those that a profile was made for (Triton: GetMostOptimizedProfile)."""
    return sum(
        abs(size - best)
        for each in facts.inputs
        if not each.is_shape
        for size, best in zip(shapes[each.name], each.spans[profile].best, strict=True)
    )
