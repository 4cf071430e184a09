"""Raw binary requests: the body is the data of a model's only input, everything else follows from the model
(Triton: core/src/infer_request.cc)."""

import math

from tpx.errors import InvalidRequest
from tpx.protocol.datatypes import BY_NAME
from tpx.protocol.tensors import Buffer, Tensor, encode_bytes
from tpx.protocol.v2 import DecodedRequest
from tpx.serving.request import TensorSpec
from tpx.serving.signature import Signature
from tpx.serving.strings import with_request_id


def raw_request(signature: Signature, version: str, body: Buffer) -> DecodedRequest:
    """The request that a body without a head stands for; all outputs come back as bytes, too.

    Raises InvalidRequest where the model has not exactly one input, or its shape does not follow.
    """
    try:
        tensor = _only_input(signature, body)
    except InvalidRequest as exc:
        raise with_request_id(exc, "") from exc
    return DecodedRequest(
        model_name=signature.name, model_version=version, inputs=[tensor], default_binary=True
    )


def _only_input(signature: Signature, body: Buffer) -> Tensor:
    specs = list(signature.inputs.values())
    if len(specs) != 1:
        raise InvalidRequest(
            f"Raw request must only have 1 input (found 1) to be deduced but got {len(specs)} inputs in "
            f"'{signature.name}' model configuration"
        )
    spec = specs[0]
    if spec.datatype == "BYTES":
        if spec.dims != (1,):
            raise InvalidRequest(
                f"For BYTE datatype raw input '{spec.name}', the model must have input shape [1]"
            )
        shape, body = [1], encode_bytes([bytes(body)])
    else:
        shape = _deduced(spec, len(body))
    if signature.max_batch_size > 0:
        shape.insert(0, 1)
    return Tensor(spec.name, spec.datatype, shape, body)


def _deduced(spec: TensorSpec, size_bytes: int) -> list[int]:
    """The dims of an input with its one variable dimension, if it has one, as the data fills it."""
    shape = list(spec.dims)
    free = [index for index, dim in enumerate(shape) if dim == -1]
    if len(free) > 1:
        raise InvalidRequest(
            f"The shape of the raw input '{spec.name}' can not be deduced because there are more than one "
            "variable-sized dimension"
        )
    if free:
        row = BY_NAME[spec.datatype].size * math.prod(dim for dim in shape if dim != -1)
        shape[free[0]] = size_bytes // row if row else 0
    return shape
