"""The steps of the data, and how several of them become the tensors of one request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tpx.errors import UsageError
from tpx.perf.clients.model import TensorSpec
from tpx.protocol.tensors import Buffer, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one inference takes and should give; its tensors have no batch dimension.

    `where` says for messages which step it is. Optional inputs may be missing.
    """

    where: str
    inputs: tuple[Tensor, ...]
    expected: tuple[Tensor, ...] = ()
    timestamp_ns: int | None = None


class Stream(Protocol):
    """Steps in order; each is made when it is asked for, so that no stream has to fit into memory."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Step: ...


def stacked(
    parts: Sequence[Sequence[Tensor]], specs: Sequence[TensorSpec], places: Sequence[str], *, batched: bool
) -> list[Tensor]:
    """The tensors of several steps as those of one request, with a batch dimension where the model has one.

    `parts` are the tensors of each step, `places` say where they come from. A shape tensor is taken once
    for all. Raises UsageError where steps do not go together.
    """
    by_step = [{tensor.name: tensor for tensor in tensors} for tensors in parts]
    out = []
    for spec in specs:
        there = [spec.name in tensors for tensors in by_step]
        if not any(there):
            continue
        if not all(there):
            raise UsageError(
                f"{places[there.index(False)]}: tensor '{spec.name}' is missing, which another step of the "
                f"same batch has ({places[there.index(True)]})"
            )
        out.append(_stacked([tensors[spec.name] for tensors in by_step], spec, places, batched=batched))
    return out


def _stacked(tensors: Sequence[Tensor], spec: TensorSpec, places: Sequence[str], *, batched: bool) -> Tensor:
    first = tensors[0]
    for tensor, where in zip(tensors, places, strict=True):
        if tensor.shape != first.shape:
            raise UsageError(
                f"{where}, tensor '{spec.name}': the shape {list(tensor.shape)} differs from "
                f"{list(first.shape)} of another step of the same batch ({places[0]})"
            )
        if spec.shape_tensor and bytes(tensor.data) != bytes(first.data):
            raise UsageError(
                f"{where}, tensor '{spec.name}': a shape tensor has to be the same in all steps of a batch "
                f"({places[0]})"
            )
    if spec.shape_tensor or not batched:
        return first
    data: Buffer = first.data if len(tensors) == 1 else b"".join(tensor.data for tensor in tensors)
    return Tensor(spec.name, spec.datatype, (len(tensors), *first.shape), data)


def named(tensors: Sequence[Tensor]) -> Mapping[str, Tensor]:
    """Tensors by their names."""
    return {tensor.name: tensor for tensor in tensors}
