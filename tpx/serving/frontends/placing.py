"""Outputs that do not go into the answer as they are: into shared memory, as JSON, as classes."""

from collections.abc import Sequence

from tpx.protocol.tensors import Tensor
from tpx.serving.offload import LONG_BYTES
from tpx.serving.request import InferRequest, RequestHead


def put_into_place(outputs: Sequence[Tensor], infer: InferRequest) -> list[Tensor]:
    """Write what the client wants in shared memory, and leave it out. Raises InvalidRequest where it does not
    fit.

    A client that has gone may use its memory for something else already: it is then left alone.
    """
    if not outputs:  # the empty final response of a decoupled model
        return []
    left = []
    for tensor, bound in zip(outputs, infer.head.outputs, strict=True):
        if bound.placement is None:
            left.append(tensor)
        else:
            if not infer.cancelled:
                bound.placement.put(tensor.name, tensor.data)
            left.append(Tensor(tensor.name, tensor.datatype, tensor.shape, b""))
    return left


def takes_long(head: RequestHead, outputs: Sequence[Tensor]) -> bool:
    """Whether to convert or to place outputs takes longer than the event loop should."""
    size = 0
    for tensor, bound in zip(outputs, head.outputs, strict=False):  # the empty final response has none
        if not bound.binary or bound.classification or bound.placement is not None:
            size += len(tensor.data)
    return size > LONG_BYTES
