"""Frames between the server and a model's process: fixed binary fields, no pickling.

A frame is its length, its kind, and fields. Tensors are a head and the location of each tensor's bytes,
inline or in shared memory. The head is the same for all messages with the same names, datatypes, and
shapes, so it is looked up instead of parsed.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence, Sized
from typing import Any, NamedTuple, Protocol, TypeVar

from tpx.serving.transport.frame_socket import HEADER
from tpx.serving.transport.memory import Buffer

Words = dict[str, Any]
"""JSON values in a frame."""
_Tensor = TypeVar("_Tensor", bound=Sized)
_Written = TypeVar("_Written", bound=Sized, contravariant=True)

# from the server
INITIALIZE, EXECUTE, CANCEL, CREDIT, REPLY, RESULT, FINALIZE, COMPLETE_CONFIG = range(1, 9)
# from the model
INITIALIZED, ANSWERS, RESPONSE, CALL, CANCEL_CALL, CONTROL, READY, FINALIZED, COMPLETED, TAKEN = range(32, 42)

BATCH = struct.Struct("<II")
"""EXECUTE: batch number, number of requests."""
HANDLE = struct.Struct("<QII")
"""A request of a batch, or a call: handle, size of the head of its tensors, size of its id."""
SIZE = struct.Struct("<I")
ANSWER = struct.Struct("<IQQQIB")
"""ANSWERS: batch, times of reading, start and end, number of entries, True if one error is for all."""
STATUS = struct.Struct("<BI")
"""Status of an entry, and the size of its head or of its error."""
RESPONSE_START = struct.Struct("<QB")
"""REPLY and each response in a RESPONSE: handle of the request or call, and flags."""
CREDIT_BODY = struct.Struct("<QQ")
"""CREDIT, TAKEN: handle of the request or call, and the number of delivered response bytes."""
_pack_response = struct.Struct(HEADER.format + RESPONSE_START.format.lstrip("<")).pack
"""Header of a frame with one response, and the start of it."""
RESPONSE_BYTES = 1 << 10
"""Bytes charged for a response in addition to its tensors."""
CREDIT_BYTES = 256 << 10
"""Deliveries are acknowledged in units of this size."""
NUMBER = struct.Struct("<Q")
LOCATION = struct.Struct("<QQ")
"""Location of a tensor: offset in the sender's memory, and size in bytes."""

_pack_location = LOCATION.pack

OVERLOADED = 64
"""Number of an error in addition to Triton's: a queue is full."""
TENSORS, ERROR, NOTHING, AGAIN = range(4)
"""Status of an entry: tensors, an error, nothing (a sender responds), or rescheduled."""
FINAL = 1
EMPTY = 2
COUNTED = 4
"""Flags of a response: final; without tensors; followed by numbers of tokens."""
COUNTS = struct.Struct("<II")
"""Tokens of the prompt, and generated ones; behind an empty response."""

INLINE = 2**64 - 1
"""Location of a tensor whose bytes are in the frame."""
INLINE_BELOW_BYTES = 16 << 10


class TensorHead(NamedTuple):
    """A tensor without its bytes; `datatype` is the wire's name."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class Head(NamedTuple):
    """Tensors, and the other fields of the message that contains them."""

    tensors: tuple[TensorHead, ...]
    extra: Words


class Memory(Protocol[_Written]):
    """Shared memory that tensors are written to; returns a location for each."""

    def put(self, data: _Written, size: int) -> int: ...


class Views(Protocol):
    """Shared memory that tensors are read from."""

    def view(self, location: int, size: int) -> Buffer: ...


def encode_head(tensors: Iterable[tuple[str, str, Sequence[int]]], extra: Words) -> bytes:
    """Encode (name, datatype, shape) tuples and JSON-serializable extra fields as a head."""
    return json.dumps([[(n, d, list(s)) for n, d, s in tensors], extra], separators=(",", ":")).encode()


def decode_head(data: bytes) -> Head:
    """Decode a head written by `encode_head`."""
    tensors, extra = json.loads(data)
    return Head(tuple(TensorHead(n, d, tuple(s)) for n, d, s in tensors), extra)


class Heads:
    """Bounded cache of decoded heads by their bytes."""

    def __init__(self, most: int = 1024) -> None:
        self._known: dict[bytes, Head] = {}
        self._most = most

    def __getitem__(self, data: bytes) -> Head:
        head = self._known.get(data)
        if head is None:
            head = decode_head(data)
            if len(self._known) >= self._most:
                self._known.clear()
            self._known[data] = head
        return head


def add_tensors(parts: list[Buffer], buffers: Sequence[_Tensor], memory: Memory[_Tensor]) -> None:
    """Append the locations of tensors, and the bytes of small ones. Raises what `memory` raises."""
    inline: list[Buffer] = []
    for data in buffers:
        size = len(data)
        if size < INLINE_BELOW_BYTES:
            parts.append(LOCATION.pack(INLINE, size))
            inline.append(data)  # type: ignore[arg-type]  # small tensors are in this process
        else:
            parts.append(LOCATION.pack(memory.put(data, size), size))
    parts += inline


def take_tensors(frame: Buffer, at: int, count: int, views: Views) -> tuple[list[Buffer], int]:
    """Return the bytes of `count` tensors, copies of small ones, and the position after them."""
    data_at = at + count * LOCATION.size
    buffers: list[Buffer] = []
    for index in range(count):
        location, size = LOCATION.unpack_from(frame, at + index * LOCATION.size)
        if location == INLINE:
            buffers.append(bytearray(frame[data_at : data_at + size]))
            data_at += size
        else:
            buffers.append(views.view(location, size))
    return buffers, data_at


def small_response(handle: int, flags: int, own: Sequence[Buffer], tensors: Sequence[Buffer]) -> bytes:
    """Return the frame of a response with the parts of its entry and its tensors, all of them small."""
    parts = [*own]
    for data in tensors:
        parts.append(_pack_location(INLINE, len(data)))  # noqa: PERF401 (a comprehension costs more for one)
    parts += tensors
    body = b"".join(parts)
    return _pack_response(RESPONSE_START.size + len(body), RESPONSE, handle, flags) + body


def framed(kind: int, parts: list[Buffer]) -> bytes:
    """Return a frame as one piece."""
    body = b"".join(parts)
    return HEADER.pack(len(body), kind) + body
