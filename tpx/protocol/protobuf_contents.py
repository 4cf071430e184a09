"""The tensors of a serialized ModelInferRequest: raw ones viewed, explicit contents read in pieces.

The protobuf parser makes of a megabyte of short strings sixteen, and holds the interpreter lock while it
does. A piece of an InferTensorContents message is one itself, so that each can be parsed alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from tpx.errors import InvalidRequest
from tpx.protocol.json_outline import LARGE_BYTES, MAX_TENSORS
from tpx.protocol.tensors import Buffer

NUMBER_BYTES = {0: 0, 1: 8, 5: 4}
"""Bytes of a number by its wire type; 0 where it varies."""
_INPUTS_TAG = 5 << 3 | 2
_CONTENTS_TAG = 5 << 3 | 2
RAW_INPUT_TAG = 7 << 3 | 2
MAX_FIELDS = 4 * MAX_TENSORS
NO_REQUEST = "Unable to parse request: it is not a ModelInferRequest"
_FIXED_BYTES = {6: 4, 7: 8}
"""Of the numbers in fp32_contents and fp64_contents."""
_PIECE_BYTES = 64 << 10
_MAX_REST_BYTES = 4 << 20
"""Of names, shapes and parameters."""


@dataclass(slots=True)
class Contents:
    """The contents of one input, in the order of the message."""

    parts: list[memoryview] = field(default_factory=list)

    def pieces(self) -> Iterator[bytes]:
        """Serialized InferTensorContents of some elements each. Raises IndexError where it is none."""
        for part in self.parts:
            yield from _pieces(part)


def encode_varint(value: int) -> bytes:
    """A number in protobuf's variable-length form."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint(view: memoryview, at: int, longest: int = 5) -> tuple[int, int]:
    """A number and where it ends; IndexError where protobuf may see none in so many bytes."""
    byte = view[at]
    if byte < 128:
        return byte, at + 1
    value = shift = 0
    while True:
        byte = view[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift == 7 * longest:
            raise IndexError


def past(view: memoryview, at: int, tag: int) -> int:
    """Where the value ends that this tag precedes; IndexError for what is none."""
    kind = tag & 7
    if tag < 8 or (kind not in NUMBER_BYTES and kind != 2):
        raise IndexError
    if kind == 2:
        size, at = varint(view, at)
        return at + size
    return at + NUMBER_BYTES[kind] if kind else varint(view, at, longest=10)[1]


def _fields(view: memoryview) -> Iterator[tuple[int, int, int]]:
    """The tag of each field, where it begins and where it ends. Raises IndexError."""
    at, end = 0, len(view)
    while at < end:
        start = at
        tag, at = varint(view, at)
        at = past(view, at, tag)
        if at > end:
            raise IndexError
        yield tag, start, at


def _payload(view: memoryview, start: int, stop: int) -> memoryview:
    """The value of a field that has a length."""
    _, at = varint(view, start)
    _, at = varint(view, at)
    return view[at:stop]


def cut_contents(head: Buffer, max_fields: int) -> tuple[bytes, list[Contents | None]]:
    """Cut the contents of the inputs out of a ModelInferRequest.

    Returns the rest, and for each input what was cut out of it. Raises IndexError where it is no such
    message, InvalidRequest for one whose rest is large.
    """
    view = memoryview(head)
    rest: list[Buffer] = []
    contents: list[Contents | None] = []
    size = count = 0
    for tag, start, stop in _fields(view):
        part: Buffer = view[start:stop]
        if tag == _INPUTS_TAG:
            inner, cut, fields = _cut_input(_payload(view, start, stop))
            part = bytes((_INPUTS_TAG,)) + encode_varint(len(inner)) + inner
            contents.append(cut)
            count += fields
        if tag != RAW_INPUT_TAG:
            size += len(part)
        if size > _MAX_REST_BYTES or count > max_fields:
            raise InvalidRequest(
                f"the names, shapes and parameters of a request take at most {_MAX_REST_BYTES} bytes and "
                f"{max_fields} fields"
            )
        rest.append(part)
    return b"".join(rest), contents


def _cut_input(view: memoryview) -> tuple[bytes, Contents | None, int]:
    """An InferInputTensor without its contents, these, and how many fields it has."""
    rest: list[Buffer] = []
    contents: Contents | None = None
    size = 0
    for tag, start, stop in _fields(view):
        if tag == _CONTENTS_TAG:
            contents = contents or Contents()
            contents.parts.append(_payload(view, start, stop))
        elif size <= _MAX_REST_BYTES:  # more is refused: it need not be kept
            rest.append(view[start:stop])
            size += stop - start
    return b"".join(rest), contents, len(rest)


def _pieces(view: memoryview) -> Iterator[bytes]:
    began = 0
    for tag, start, stop in _fields(view):
        if stop - start > _PIECE_BYTES and tag & 7 == 2 and tag >> 3 != 8:
            yield bytes(view[began:start])
            yield from _packed(tag, _payload(view, start, stop))
            began = stop
        elif stop - began > _PIECE_BYTES:
            yield bytes(view[began:stop])
            began = stop
    yield bytes(view[began:])


def _packed(tag: int, numbers: memoryview) -> Iterator[bytes]:
    """A packed field of numbers as several."""
    width = _FIXED_BYTES.get(tag >> 3, 0)
    at = 0
    while at < len(numbers):
        stop = min(at + _PIECE_BYTES, len(numbers))
        while not width and numbers[stop - 1] >= 128 and stop < len(numbers):
            stop += 1  # not in the middle of a number
        yield bytes((tag,)) + encode_varint(stop - at) + bytes(numbers[at:stop])
        at = stop


def split_raw_inputs(data: Buffer, start: int) -> tuple[int, list[memoryview]]:
    """Where the trailing run of raw_input_contents begins, and views of its entries.

    `start` is a field boundary to walk from. A message that is not a plain sequence of fields, the tensors
    last, is left to the protobuf parser as a whole. Raises InvalidRequest for one of so many fields, or so
    large and malformed, that the parser would make of it a multiple of its size.
    """
    view = memoryview(data)
    end = len(view)
    at = start
    begins = -1
    count = 0
    last = True
    raw: list[memoryview] = []
    try:
        while at < end:
            field_start = at
            tag, at = varint(view, at)
            if tag == RAW_INPUT_TAG:
                size, at = varint(view, at)
                if begins < 0:
                    begins = field_start
                raw.append(view[at : at + size])
                at += size
            else:
                last = begins < 0
                at = past(view, at, tag)
            count += 1
            if count > MAX_FIELDS:
                raise InvalidRequest(
                    f"a request has at most {MAX_FIELDS} inputs, outputs, parameters and raw_input_contents"
                )
    except IndexError:
        at = end + 1
    if at > end and end - start > LARGE_BYTES:
        raise InvalidRequest(NO_REQUEST)
    return (begins, raw) if begins >= 0 and last and at == end else (end, [])
