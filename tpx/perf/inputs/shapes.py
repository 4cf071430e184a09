"""The shapes that requests have: the model's, completed by the user's."""

from collections.abc import Mapping, Sequence

from tpx.errors import MeasurementError, UsageError
from tpx.options import nearest
from tpx.perf.clients.model import ModelDescription, TensorSpec
from tpx.perf.inputs.values import check_fit
from tpx.perf.settings import Shape

Dims = tuple[int, ...]
"""Dimensions without that of the batch; -1 where neither the model nor the user says."""


def resolve_shapes(model: ModelDescription, given: Sequence[Shape], batch_size: int) -> Mapping[str, Dims]:
    """The dimensions of each input, as the user wants them where the model leaves a choice.

    Raises UsageError where a given shape names no input or contradicts the model.
    """
    _check_batch(model, batch_size)
    if not model.inputs:
        raise MeasurementError(
            f"the metadata of model '{model.name}' lists no inputs, so no request can be made for it; say "
            "what they are with --declare NAME:DATATYPE:DIMS, such as --declare x:FP32:1,4"
        )
    wanted = {shape.name: shape.dims for shape in given}
    names = [spec.name for spec in model.inputs]
    for name in wanted:
        if name not in names:
            raise UsageError(
                f"--shape {name}: model '{model.name}' has no such input{nearest(name, names)}"
                f" (has: {', '.join(names)})"
            )
    for spec in model.inputs:
        if spec.name in wanted:
            text = ",".join(map(str, wanted[spec.name]))
            check_fit(spec, wanted[spec.name], f"--shape {spec.name}:{text}")
    return {spec.name: wanted.get(spec.name, spec.shape) for spec in model.inputs}


def assumed(dims: Dims) -> Dims:
    """The dimensions of an input that is made by us: 1 where nobody says."""
    return tuple(1 if d < 0 else d for d in dims)


def assumption(spec: TensorSpec, dims: Dims) -> str:
    """What `assumed` takes for granted, for the user; empty where that is nothing."""
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
