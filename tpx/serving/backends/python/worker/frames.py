"""Frames between the server and the process of a model: fixed binary fields, no pickling.

A frame is its length and kind, then fields. Tensors are a head, which is the same for all messages with the
same names, types and shapes and is therefore looked up and not parsed, then where each tensor's bytes are:
behind the locations, or in shared memory.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol, Union

Buffer = Union[bytes, bytearray, memoryview]
Words = dict[str, Any]
"""JSON values in a frame."""

HEADER = struct.Struct("<IB")
"""The length of what follows it, and the kind."""

# from the server
INITIALIZE, EXECUTE, CANCEL, CREDIT, REPLY, RESULT, SEGMENT, ASK_READY, FINALIZE, COMPLETE_CONFIG = range(
    1, 11
)
# from the model
INITIALIZED, ANSWERS, RESPONSE, CALL, CANCEL_CALL, CONTROL, GROW, READY, FINALIZED, COMPLETED, TAKEN = range(
    32, 43
)

BATCH = struct.Struct("<II")
"""EXECUTE: the batch, how many requests."""
HANDLE = struct.Struct("<QII")
"""A request of a batch, or a call: its handle, the sizes of the head of its tensors and of its id."""
SIZE = struct.Struct("<I")
ANSWER = struct.Struct("<IQQQIB")
"""ANSWERS: the batch, when it was read, begun and computed, how many entries, whether one error is all."""
STATUS = struct.Struct("<BI")
"""What an entry is, and the size of its head or of its error."""
RESPONSE_START = struct.Struct("<QB")
"""RESPONSE and REPLY: which request or call, and flags."""
CREDIT_BODY = struct.Struct("<QQ")
"""CREDIT, TAKEN: of which request or call, how many bytes of responses have gone where they shall."""
RESPONSE_BYTES = 1 << 10
"""What a response counts besides its tensors."""
CREDIT_BYTES = 256 << 10
"""It is told in lumps what has gone."""
SEGMENT_BODY = struct.Struct("<BQ")
"""SEGMENT: what it is for; its size, 0 where there is no memory."""
FROM_SERVER, FROM_MODEL, PROGRESS = range(3)
"""What a segment is for: tensors in one direction, or the number of the batch that the model began last."""
NUMBER = struct.Struct("<Q")
LOCATION = struct.Struct("<QQ")
"""Of a tensor: where in the sender's segment, and how many bytes."""

TENSORS, ERROR, NOTHING, AGAIN = range(4)
"""Statuses of an answer: its tensors, its error, none (a sender gives it), none (the request comes again)."""
FINAL = 1
EMPTY = 2
"""Flags of a response: nothing follows; there are no tensors."""

INLINE = 2**64 - 1
"""As a location: the bytes are in the frame."""
INLINE_BELOW_BYTES = 16 << 10


class TensorHead(NamedTuple):
    """Everything of a tensor but its bytes; `datatype` is the wire's name."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class Head(NamedTuple):
    """Tensors, and what else is said of the message they are in."""

    tensors: tuple[TensorHead, ...]
    extra: Words


class Memory(Protocol):
    """Shared memory that tensors are put into; a location each."""

    def put(self, data: Buffer, size: int) -> int: ...


class Views(Protocol):
    """Shared memory that tensors are read from."""

    def view(self, location: int, size: int) -> Buffer: ...


def encode_head(tensors: Iterable[tuple[str, str, Sequence[int]]], extra: Words) -> bytes:
    """A head of (name, datatype, shape) and whatever JSON can say."""
    return json.dumps([[(n, d, list(s)) for n, d, s in tensors], extra], separators=(",", ":")).encode()


def decode_head(data: bytes) -> Head:
    """Return what `encode_head` has written."""
    tensors, extra = json.loads(data)
    return Head(tuple(TensorHead(n, d, tuple(s)) for n, d, s in tensors), extra)


class Heads:
    """Heads that were read before, by their bytes; bounded."""

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


def add_tensors(parts: list[Buffer], buffers: list[Buffer], memory: Memory) -> None:
    """Add the locations of tensors and the bytes of small ones. Raises what `memory` does."""
    inline = []
    for data in buffers:
        size = len(data)
        if size < INLINE_BELOW_BYTES:
            parts.append(LOCATION.pack(INLINE, size))
            inline.append(data)
        else:
            parts.append(LOCATION.pack(memory.put(data, size), size))
    parts += inline


def take_tensors(frame: memoryview, at: int, count: int, views: Views) -> tuple[list[Buffer], int]:
    """The bytes of `count` tensors, small ones copied; and where the frame goes on."""
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


def framed(kind: int, parts: list[Buffer]) -> bytes:
    """A frame in one piece."""
    body = b"".join(parts)
    return HEADER.pack(len(body), kind) + body
