"""A look at large JSON before it is read: what is made of structure takes twenty times its size, and seconds
of the event loop, where numbers and texts of the same size take little.

Small JSON is not looked at: it cannot hurt.
"""

import re

import msgspec
import numpy as np

from tpx.errors import InvalidRequest
from tpx.protocol.tensors import Buffer

LARGE_BYTES = 1 << 20
MAX_TENSORS = 4096
"""Inputs, or outputs, of one request."""
_MAX_TEXT_BYTES = 2 << 20
"""Of the shapes, the outputs or the parameters of a request."""
_MAX_STRUCTURE = 50_000
"""Lists, objects and members of a JSON text whose values are flat."""

_STRUCTURE = (b"[", b"{", b":")
_NUMBER_WORD = re.compile(rb"NaN|-?Infinity")


class _Item(msgspec.Struct):
    shape: msgspec.Raw = msgspec.Raw()
    parameters: msgspec.Raw = msgspec.Raw()


class _Outline(msgspec.Struct):
    inputs: list[msgspec.Raw] = []
    outputs: msgspec.Raw = msgspec.Raw()
    parameters: msgspec.Raw = msgspec.Raw()


_outline = msgspec.json.Decoder(_Outline).decode
_item = msgspec.json.Decoder(_Item).decode


def check_request(head: Buffer) -> None:
    """Raise InvalidRequest for an inference request that is large, but not by the data of its inputs."""
    text = bytes(head)
    if b"NaN" in text or b"Infinity" in text:
        text = _NUMBER_WORD.sub(b"0", text)
    try:
        outline = _outline(text)
        if len(outline.inputs) > MAX_TENSORS:
            raise InvalidRequest(f"a request has at most {MAX_TENSORS} inputs, got {len(outline.inputs)}")
        items = [_item(item) for item in outline.inputs]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return  # whoever reads it says what is wrong
    for what, size in (
        ("outputs", len(outline.outputs)),
        ("parameters", len(outline.parameters) + sum(len(item.parameters) for item in items)),
        ("shapes", sum(len(item.shape) for item in items)),
    ):
        if size > _MAX_TEXT_BYTES:
            raise InvalidRequest(f"the {what} of a request take at most {_MAX_TEXT_BYTES} bytes, got {size}")


def check_flat(body: Buffer) -> None:
    """Raise InvalidRequest for large JSON of very many lists, objects or members."""
    text = bytes(body)
    if sum(map(text.count, _STRUCTURE)) > _MAX_STRUCTURE and _outside_strings(text) > _MAX_STRUCTURE:
        raise InvalidRequest(
            f"failed to parse the request JSON buffer: it has more than {_MAX_STRUCTURE} lists, objects and "
            "members"
        )


def _outside_strings(text: bytes) -> int:
    """How often a character of structure stands where it is one: behind an even number of quotes."""
    characters = np.frombuffer(text.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
    inside = np.bitwise_xor.accumulate((characters == ord('"')).view(np.uint8))
    return sum(int(np.count_nonzero((characters == ord(mark)) & (inside == 0))) for mark in _STRUCTURE)
