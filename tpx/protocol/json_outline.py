"""Splitting of large JSON before it is parsed: parsing it at once would create objects of twenty times
its size and hold the interpreter lock for seconds.

Long lists of numbers and strings are cut out (`cut_lists`) and parsed in pieces (`pieces`); the rest is
small, or is refused because it is mostly structure. Small JSON is parsed directly.
"""

import re
from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt

from tpx.errors import InvalidRequest
from tpx.protocol.tensors import Buffer

LARGE_BYTES = 1 << 20
MAX_JSON_DEPTH = 100
MAX_TENSORS = 4096
"""Maximum number of inputs, or outputs, of one request."""
_MAX_TEXT_BYTES = 2 << 20
"""Maximum size of the names, the shapes, the outputs or the parameters of a request."""
_MAX_STRUCTURE = 50_000
"""Maximum number of lists, objects and members in a JSON text with flat values."""
_PIECE_BYTES = 128 << 10

_STRUCTURE = (b"[", b"{", b":")
_NUMBER_WORDS = (b"NaN", b"-Infinity", b"Infinity")


def _make_table(characters: bytes) -> bytes:
    """Return a table for `bytes.translate`: 1 for these characters, 0 for all others."""
    return bytes(number in characters for number in range(256))


_COMMA, _OPENS, _IS_LIST, _BRACKETS, _MARKS = map(_make_table, (b",", b"[{", b"[]", b"[]{}", b",[]{}"))
_BLANK = bytes.maketrans(b"[]", b"  ")
_LONGEST_MARK = 64
_MARK = re.compile(rb'\s*\{"\\u0000":(\d{1,5})\}\s*')


class _Item(msgspec.Struct):
    name: msgspec.Raw = msgspec.Raw()
    datatype: msgspec.Raw = msgspec.Raw()
    shape: msgspec.Raw = msgspec.Raw()
    parameters: msgspec.Raw = msgspec.Raw()


class _Outline(msgspec.Struct):
    id: msgspec.Raw = msgspec.Raw()
    inputs: list[msgspec.Raw] = []
    outputs: msgspec.Raw = msgspec.Raw()
    parameters: msgspec.Raw = msgspec.Raw()


_outline = msgspec.json.Decoder(_Outline).decode
_item = msgspec.json.Decoder(_Item).decode


def check_request(head: Buffer) -> None:
    """Raise InvalidRequest for an inference request that is large for reasons other than its inputs' data."""
    text = bytes(head)
    for word in _NUMBER_WORDS:
        text = text.replace(word, b"0")
    try:
        outline = _outline(text)
        if len(outline.inputs) > MAX_TENSORS:
            raise InvalidRequest(f"a request has at most {MAX_TENSORS} inputs, got {len(outline.inputs)}")
        items = [_item(item) for item in outline.inputs]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return  # the decoder reports what is wrong
    for what, size in (
        ("id and names", len(outline.id) + sum(len(item.name) + len(item.datatype) for item in items)),
        ("outputs", len(outline.outputs)),
        ("parameters", len(outline.parameters) + sum(len(item.parameters) for item in items)),
        ("shapes", sum(len(item.shape) for item in items)),
    ):
        if size > _MAX_TEXT_BYTES:
            raise InvalidRequest(f"the {what} of a request take at most {_MAX_TEXT_BYTES} bytes, got {size}")


def check_flat(body: Buffer) -> None:
    """Raise InvalidRequest for large JSON with too many lists, objects or members."""
    text = bytes(body)
    if sum(map(text.count, _STRUCTURE)) > _MAX_STRUCTURE:
        count = 0
        for piece in pieces(text, _MARKS):
            characters, outside = np.frombuffer(piece, np.uint8), _mark_outside(piece)
            count += sum(int(np.count_nonzero((characters == ord(mark)) & outside)) for mark in _STRUCTURE)
            if count > _MAX_STRUCTURE:
                raise _too_much_structure()


def _too_much_structure() -> InvalidRequest:
    return InvalidRequest(
        f"failed to parse the request JSON buffer: it has more than {_MAX_STRUCTURE} lists, objects and "
        "members"
    )


def pieces(text: Buffer, behind: bytes = _COMMA) -> Iterator[bytes]:
    """Yield pieces of JSON of about 128 KiB, cut outside strings after characters of the table `behind`."""
    view, at, size = memoryview(text), 0, _PIECE_BYTES
    while at + size < len(view):
        piece = bytes(view[at : at + size])
        stop = _find_last(piece, behind) + 1
        if stop:
            yield piece[:stop]
            at, size = at + stop, _PIECE_BYTES
        else:
            size *= 2  # within a long string
    yield bytes(view[at:])


def _find_last(piece: bytes, marks: bytes) -> int:
    """Return the position of the last character of the table outside strings, or -1."""
    found = piece.translate(marks)
    if b'"' not in piece:
        return found.rfind(1)
    places = np.flatnonzero(_as_booleans(found) & _mark_outside(piece))
    return int(places[-1]) if len(places) else -1


def _as_booleans(flags: bytes) -> npt.NDArray[np.bool_]:
    """View the output of `bytes.translate` with one of our tables as booleans."""
    return np.frombuffer(flags, np.bool_)


def _mark_outside(piece: bytes) -> npt.NDArray[np.bool_]:
    """Mark the characters outside strings, in a piece that starts outside one: those after an even
    number of quotes.
    """
    if b"\\" in piece:  # mask escaped quotes, keeping the length
        piece = piece.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    return ~np.bitwise_xor.accumulate(np.frombuffer(piece, np.uint8) == ord('"'))


def cut_lists(text: Buffer) -> tuple[bytes, list[memoryview]]:
    """Cut the long lists without objects out of a JSON text, where they are a member's value.

    Returns the rest, in which `mark_of` identifies the position of each list, and the lists as views of
    `text`. Raises InvalidRequest for a text with too many other lists and objects.
    """
    view = memoryview(text)
    spans = [span for span in _Brackets(view).lists() if span[1] - span[0] > _PIECE_BYTES]
    rest: list[Buffer] = []
    at = 0
    for number, (start, stop) in enumerate(spans):
        rest += (view[at:start], b'{"\\u0000":%d}' % number)
        at = stop
    rest.append(view[at:])
    return b"".join(rest), [view[start:stop] for start, stop in spans]


def mark_of(value: object) -> int | None:
    """Return the number of the list that was cut out at `value` (parsed or raw JSON of the rest), or None."""
    if isinstance(value, msgspec.Raw):
        found = _MARK.fullmatch(memoryview(value)) if len(value) < _LONGEST_MARK else None
        return None if found is None else int(found[1])
    if isinstance(value, dict) and len(value) == 1:
        number = value.get("\0")
        return number if type(number) is int and number >= 0 else None
    return None


class _Brackets:
    """Walks the brackets of a JSON text; the inside of lists without objects is skipped in bulk."""

    def __init__(self, text: memoryview) -> None:
        self._text = text
        self._steps = 0

    def lists(self) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of each outermost list without objects."""
        depth_in_list, began = 0, 0
        at = 0
        for piece in pieces(self._text, _MARKS):
            brackets = _as_booleans(piece.translate(_BRACKETS))
            places = np.flatnonzero(brackets & _mark_outside(piece) if b'"' in piece else brackets)
            kinds = np.frombuffer(piece, np.uint8)[places]
            index = 0
            while index < len(places):
                if depth_in_list:
                    index, depth_in_list = self._skip_list(kinds, index, depth_in_list)
                    if depth_in_list == 0:
                        yield began, at + int(places[index - 1]) + 1
                    elif depth_in_list < 0:  # it holds an object: visit its lists one by one
                        depth_in_list = 0
                        self._count_step()
                        index += 1
                    continue
                if kinds[index] == ord("["):
                    depth_in_list, began = 1, at + int(places[index])
                self._count_step()
                index += 1
            at += len(piece)

    def _count_step(self) -> None:
        self._steps += 1
        if self._steps > _MAX_STRUCTURE:
            raise _too_much_structure()

    @staticmethod
    def _skip_list(kinds: npt.NDArray[np.uint8], index: int, depth: int) -> tuple[int, int]:
        """Skip brackets to the end of a list. Returns the next bracket's index and depth, -1 at an object."""
        window = 64
        while index < len(kinds):
            ahead = kinds[index : index + window]
            text = ahead.tobytes()
            in_list = _as_booleans(text.translate(_IS_LIST))
            depths = depth + np.cumsum(np.where(_as_booleans(text.translate(_OPENS)), 1, -1))
            if depths.max() > MAX_JSON_DEPTH:
                raise InvalidRequest(f"JSON nesting depth exceeds maximum allowed limit ({MAX_JSON_DEPTH})")
            ends = np.flatnonzero((depths == 0) | ~in_list)
            if len(ends):
                end = int(ends[0])
                return (index + end + 1, 0) if in_list[end] else (index + end, -1)
            index, depth, window = index + len(ahead), int(depths[-1]), 2 * window
        return index, depth


def flat_list(name: str, piece: bytes) -> bytes:
    """Flatten a piece of nested lists into one list. Raises InvalidRequest if it contains objects."""
    piece = piece.removesuffix(b",")
    if b'"' not in piece:
        found, piece = b"{" in piece, piece.translate(_BLANK)
    else:
        characters, outside = np.frombuffer(piece, np.uint8), _mark_outside(piece)
        found = bool((outside & (characters == ord("{"))).any())
        if b"[" in piece or b"]" in piece:
            piece = np.where(
                outside & _as_booleans(piece.translate(_IS_LIST)), np.uint8(ord(" ")), characters
            ).tobytes()
    if found:
        raise InvalidRequest(
            f"Unable to parse 'data': attempt to access JSON object as array (input '{name}')"
        )
    return b"[" + piece + b"]"
