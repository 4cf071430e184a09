"""Outputs that go into shared memory instead of into the answer."""

from collections.abc import Sequence

from tpx.protocol.tensors import Tensor
from tpx.serving.request import RequestHead


def put_into_place(outputs: Sequence[Tensor], head: RequestHead) -> list[Tensor]:
    """Write what the client wants in shared memory, and leave it out. Raises InvalidRequest where it does not
    fit."""
    left = []
    for tensor, bound in zip(outputs, head.outputs, strict=True):
        if bound.placement is None:
            left.append(tensor)
        else:
            bound.placement.put(tensor.name, tensor.data)
            left.append(Tensor(tensor.name, tensor.datatype, tensor.shape, b""))
    return left
