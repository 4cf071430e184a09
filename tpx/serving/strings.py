"""BYTES tensors, checked against their shape in Triton's words (core/src/infer_request.cc).

Their elements can only be walked one by one: of a large tensor that takes seconds, so it is done where the
model computes, and not on the event loop.
"""

from tpx.errors import InvalidRequest
from tpx.protocol.tensors import Buffer, decode_bytes

CHECKED_AT_ONCE_BYTES = 64 << 10
"""Up to this size a tensor is checked when its request comes."""


def elements_of(model: str, name: str, data: Buffer, count: int) -> list[bytes]:
    """The `count` elements of input `name`. Raises InvalidRequest where lengths and data do not agree."""
    try:
        return decode_bytes(data, count)
    except InvalidRequest as exc:
        head, _, rest = exc.message.partition(",")
        raise InvalidRequest(f"{head} for inference input '{name}' for model '{model}',{rest}") from exc


def with_request_id(error: InvalidRequest, request_id: str) -> InvalidRequest:
    """The error as every message of a request's validation is told."""
    return InvalidRequest(f"[request id: {request_id or '<id_unknown>'}] {error.message}")
