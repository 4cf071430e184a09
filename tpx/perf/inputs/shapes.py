"""The shapes that requests have: the model's, completed by the user's."""

from collections.abc import Sequence
from dataclasses import dataclass

from tpx.errors import MeasurementError, UsageError
from tpx.options import nearest
from tpx.perf.clients.model import ModelDescription, TensorSpec
from tpx.perf.settings import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedShapes:
    """Full shapes by input name, batch dimension included where the model has one."""

    by_input: dict[str, tuple[int, ...]]
    notices: tuple[str, ...]
    """What was assumed, for the user."""


def resolve_shapes(model: ModelDescription, given: Sequence[Shape], batch_size: int) -> ResolvedShapes:
    """Complete every dynamic dimension: from `given`, else with 1, which is noted.

    Raises UsageError where a given shape names no input or contradicts the model.
    """
    _check_batch(model, batch_size)
    if not model.inputs:
        raise MeasurementError(
            f"the metadata of model '{model.name}' lists no inputs, so no request can be made for it"
        )
    wanted = {shape.name: shape.dims for shape in given}
    names = [spec.name for spec in model.inputs]
    for name in wanted:
        if name not in names:
            raise UsageError(
                f"--shape {name}: model '{model.name}' has no such input{nearest(name, names)}"
                f" (has: {', '.join(names)})"
            )
    notices = []
    shapes = {}
    for spec in model.inputs:
        dims = wanted.get(spec.name)
        if dims is not None:
            _check_fit(spec, dims)
        elif -1 in spec.shape:
            dims = tuple(1 if d < 0 else d for d in spec.shape)
            text = ",".join(map(str, dims))
            notices.append(
                f"input '{spec.name}' has dynamic dimensions {list(spec.shape)}: sending {list(dims)};"
                f" choose others with --shape {spec.name}:{text}"
            )
        else:
            dims = spec.shape
        shapes[spec.name] = (batch_size, *dims) if model.max_batch_size else dims
    return ResolvedShapes(by_input=shapes, notices=tuple(notices))


def _check_batch(model: ModelDescription, batch_size: int) -> None:
    if batch_size == 1:
        return
    if model.max_batch_size == 0:
        raise UsageError("can not specify batch size > 1 as the model does not support batching")
    if batch_size > model.max_batch_size:
        raise UsageError(
            f"-b {batch_size} is more than model '{model.name}' takes "
            f"(max_batch_size: {model.max_batch_size})"
        )


def _check_fit(spec: TensorSpec, dims: tuple[int, ...]) -> None:
    fits = len(dims) == len(spec.shape) and all(m in (-1, d) for m, d in zip(spec.shape, dims, strict=True))
    if not fits:
        raise UsageError(
            f"--shape {spec.name}:{','.join(map(str, dims))} does not fit the model, "
            f"whose input is {list(spec.shape)} without the batch dimension"
        )
