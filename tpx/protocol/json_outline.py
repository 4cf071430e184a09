"""A look at large JSON before it is read: what is made of structure takes twenty times its size, and seconds
of the event loop, where numbers and texts of the same size take little.

Small JSON is not looked at: it cannot hurt.
"""

import msgspec
import numpy as np
import numpy.typing as npt

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
_NUMBER_WORDS = (b"NaN", b"-Infinity", b"Infinity")


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
    for word in _NUMBER_WORDS:
        text = text.replace(word, b"0")
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


def texts_in_one_list(data: bytes) -> bytes:
    """Texts in very many nested lists as one list. Raises InvalidRequest for objects among them."""
    if data.count(b"[") + data.count(b"{") <= _MAX_STRUCTURE or not data.startswith(b"["):
        return data
    outside = _outside(data)
    characters = np.frombuffer(data, np.uint8)
    if (outside & (characters == ord("{"))).any():
        raise InvalidRequest("Unable to parse 'data': attempt to access JSON object as array")
    opening, closing = (outside & (characters == ord(mark)) for mark in "[]")
    if np.count_nonzero(opening) != np.count_nonzero(closing):
        return data  # no JSON: that is told as always
    return b"[" + np.where(opening | closing, np.uint8(ord(" ")), characters).tobytes() + b"]"


def _outside_strings(text: bytes) -> int:
    """How often a character of structure stands where it is one."""
    characters, outside = np.frombuffer(text, np.uint8), _outside(text)
    return sum(int(np.count_nonzero((characters == ord(mark)) & outside)) for mark in _STRUCTURE)


def _outside(text: bytes) -> npt.NDArray[np.bool_]:
    """Which characters are in no string: those behind an even number of quotes."""
    plain = np.frombuffer(text.replace(b"\\\\", b"__").replace(b'\\"', b"__"), np.uint8)
    return ~np.bitwise_xor.accumulate(plain == ord('"'))
