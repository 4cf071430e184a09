"""Outputs that need conversion: to shared memory, JSON or classes.

Classification follows Triton's server/src/classification.cc.
"""

import math
from collections.abc import Sequence

import numpy as np

from tpx.errors import InvalidRequest
from tpx.protocol.tensors import Tensor, encode_bytes
from tpx.serving.offload import COPIED_AT_ONCE_BYTES, LONG_BYTES
from tpx.serving.request import BoundOutput, InferRequest, RequestHead

_MAX_ELEMENTS = 1_000_000


def classify(tensor: Tensor, bound: BoundOutput, head: RequestHead) -> Tensor:
    """Return BYTES "value:index[:label]", best first, per batch row; shape [batch?, k]."""
    array = tensor.numpy()
    if array.size > _MAX_ELEMENTS:
        raise InvalidRequest("classification output tensor too large")
    batched = head.model.max_batch_size > 0
    batch = (array.shape[:1] if batched else ()) or (1,)
    rows = array.reshape(*batch, math.prod(array.shape[1:]) if batched else array.size)
    count = min(bound.classification, rows.shape[1])
    labels = bound.spec.labels
    elements = []
    for row in rows:
        # by descending value; ties keep their order, NaN comes last
        if row.dtype.kind == "f":
            order = np.argsort(-row, kind="stable")
        else:
            order = (len(row) - 1 - np.argsort(row[::-1], kind="stable"))[::-1]
        for index in order[:count]:
            value = f"{row[index]:f}" if row.dtype.kind == "f" else str(row[index])
            label = f":{labels[index]}" if index < len(labels) and labels[index] else ""
            elements.append(f"{value}:{index}{label}".encode())
    shape = (len(rows), count) if batched else (count,)
    return Tensor(tensor.name, "BYTES", shape, encode_bytes(elements))


def with_classes(outputs: list[Tensor], head: RequestHead) -> list[Tensor]:
    """Return the outputs; those for which the client requested classes are classified."""
    if not any(bound.classification for bound in head.outputs):
        return outputs
    wanted = {bound.spec.name: bound for bound in head.outputs}
    return [
        classify(tensor, wanted[tensor.name], head) if wanted[tensor.name].classification else tensor
        for tensor in outputs
    ]


def put_into_place(outputs: Sequence[Tensor], infer: InferRequest) -> list[Tensor]:
    """Write outputs to the requested shared memory; their data is empty in the result. Raises
    InvalidRequest if an output does not fit.

    Memory of a disconnected client is not written: the client may already use it otherwise.
    """
    if not outputs:  # empty final response of a decoupled model
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
    """Return True if converting or copying the outputs would block the event loop for too long."""
    converted = placed = 0
    for tensor, bound in zip(outputs, head.outputs, strict=False):  # an empty final response has none
        if not bound.binary or bound.classification:
            converted += len(tensor.data)
        elif bound.placement is not None:
            placed += len(tensor.data)
    return converted > LONG_BYTES or placed > COPIED_AT_ONCE_BYTES
