"""Tensors of a serialized ModelInferRequest: views of raw ones, explicit contents read in pieces.

The protobuf parser turns one megabyte of short strings into sixteen, and holds the interpreter lock
meanwhile. Each piece of an InferTensorContents message is such a message too, and can be parsed alone.
"""

from collections.abc import Iterator
from functools import lru_cache

from tpx.errors import InvalidRequest
from tpx.protocol.json_outline import LARGE_BYTES, MAX_TENSORS
from tpx.protocol.tensors import Buffer

NUMBER_BYTES = {0: 0, 1: 8, 5: 4}
"""Size in bytes of a number by wire type; 0 if variable."""
_INPUTS_TAG = 5 << 3 | 2
_CONTENTS_TAG = 5 << 3 | 2
RAW_INPUT_TAG = 7 << 3 | 2
MAX_FIELDS = 4 * MAX_TENSORS
NO_REQUEST = "Unable to parse request: it is not a ModelInferRequest"
_FIXED_BYTES = {6: 4, 7: 8}
"""Size in bytes of the numbers in fp32_contents and fp64_contents."""
_PIECE_BYTES = 64 << 10
_MAX_REST_BYTES = 4 << 20
"""Maximum size of names, shapes and parameters."""


Contents = list[memoryview]
"""Contents of one input, in the message's order."""


@lru_cache(maxsize=1024)
def encode_varint(value: int) -> bytes:
    """Encode a number as a protobuf varint."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint(view: memoryview, at: int, longest: int = 5) -> tuple[int, int]:
    """Decode a varint of at most `longest` bytes. Returns it and its end. Raises IndexError if malformed."""
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
    """Return the end of the value after `tag`. Raises IndexError if malformed."""
    kind = tag & 7
    if tag < 8 or (kind not in NUMBER_BYTES and kind != 2):
        raise IndexError
    if kind == 2:
        size, at = varint(view, at)
        return at + size
    return at + NUMBER_BYTES[kind] if kind else varint(view, at, longest=10)[1]


def iter_fields(view: memoryview) -> Iterator[tuple[int, int, int]]:
    """Yield each field's tag, start and end. Raises IndexError if malformed."""
    at, end = 0, len(view)
    while at < end:
        start = at
        tag, at = varint(view, at)
        at = past(view, at, tag)
        if at > end:
            raise IndexError
        yield tag, start, at


def read_payload(view: memoryview, start: int, stop: int) -> memoryview:
    """Return the value of a length-delimited field."""
    _, at = varint(view, start)
    _, at = varint(view, at)
    return view[at:stop]


def cut_contents(head: Buffer, max_fields: int) -> tuple[bytes, list[Contents | None]]:
    """Cut the inputs' contents out of a ModelInferRequest.

    Returns the rest, and the contents cut out of each input. Raises IndexError if it is no such
    message, and InvalidRequest if the rest is too large.
    """
    view = memoryview(head)
    rest: list[Buffer] = []
    contents: list[Contents | None] = []
    size = count = 0
    for tag, start, stop in iter_fields(view):
        part: Buffer = view[start:stop]
        if tag == _INPUTS_TAG:
            inner, cut, fields = _cut_input(read_payload(view, start, stop))
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
    """Return an InferInputTensor without its contents, the contents, and its number of other fields."""
    rest: list[Buffer] = []
    contents: Contents | None = None
    size = 0
    for tag, start, stop in iter_fields(view):
        if tag == _CONTENTS_TAG:
            contents = contents or []
            contents.append(read_payload(view, start, stop))
        elif size <= _MAX_REST_BYTES:  # over the limit it is refused anyway
            rest.append(view[start:stop])
            size += stop - start
    return b"".join(rest), contents, len(rest)


def contents_in_pieces(contents: Contents) -> Iterator[bytes]:
    """Yield serialized InferTensorContents of some elements each. Raises IndexError if malformed."""
    for view in contents:
        began = 0
        for tag, start, stop in iter_fields(view):
            if stop - start > _PIECE_BYTES and tag & 7 == 2 and tag >> 3 != 8:
                yield bytes(view[began:start])
                yield from _split_packed(tag, read_payload(view, start, stop))
                began = stop
            elif stop - began > _PIECE_BYTES:
                yield bytes(view[began:stop])
                began = stop
        yield bytes(view[began:])


def _split_packed(tag: int, numbers: memoryview) -> Iterator[bytes]:
    """Split a packed field of numbers into several."""
    width = _FIXED_BYTES.get(tag >> 3, 0)
    at = 0
    while at < len(numbers):
        stop = min(at + _PIECE_BYTES, len(numbers))
        while not width and numbers[stop - 1] >= 128 and stop < len(numbers):
            stop += 1  # do not cut within a number
        yield bytes((tag,)) + encode_varint(stop - at) + bytes(numbers[at:stop])
        at = stop


def split_raw_inputs(data: Buffer) -> tuple[int, list[memoryview]]:
    """Return the start of the trailing run of raw_input_contents, and views of its entries.

    A message that is not a plain sequence of fields
    with the tensors last is left to the protobuf parser as a whole. Raises InvalidRequest for a message
    with so many fields, or so large and malformed, that parsing would take a multiple of its size.
    """
    view = memoryview(data)
    end = len(view)
    at = 0
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
    if at > end > LARGE_BYTES:
        raise InvalidRequest(NO_REQUEST)
    return (begins, raw) if begins >= 0 and last and at == end else (end, [])
