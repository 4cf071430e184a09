"""Header blocks: decoding with a memory of blocks that leave the compression state alone, and constant
encoding.

A gRPC client repeats its header block from call to call. A block that neither inserts into the dynamic table
nor resizes
it decodes to the same headers until another block changes the table, so its bytes are a key to what was
decoded.
"""

import re
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from hpack import Decoder, HPACKError, OversizedHeaderListError

from tpx.protocol.http2.frames import ErrorCode, Http2Error

MAX_HEADER_LIST_BYTES = 64 << 10
"""The size of a header list, and of its block, that a client takes: as RFC 9113 counts it (section 6.5.2)."""
_FIELD_BYTES = 32

_MANY_UPDATES = re.compile(rb"(?:[\x20-\x3e]|\x3f[\x80-\xff]*[\x00-\x7f]){16}")
"""An encoder needs two at the most (RFC 7541 section 4.2), and each costs as much as a header."""

_CACHED_LIST_BYTES = 4 << 10
_CACHED_BYTES = 128 << 10
"""Of header lists that a connection remembers: a block of a few bytes may stand for a large one."""
_ENTRY_BYTES = 1 << 10
"""Beside its list, for what was made of it."""

_STATIC_NAMES = {
    b":authority": 1,
    b":method": 2,
    b":path": 4,
    b":scheme": 6,
    b":status": 8,
    b"accept-encoding": 16,
    b"content-type": 31,
    b"user-agent": 58,
}

DEFAULT_TABLE_BYTES = 4096
EMPTY_TABLE = b"\x20"
"""At the beginning of a block: the sender's table holds nothing from now on (RFC 7541 section 6.3)."""

Header = tuple[bytes, bytes]


T = TypeVar("T")


class BlockDecoder(Generic[T]):
    """Decodes one direction of one connection. `get` finds a remembered block, `add` decodes one."""

    def __init__(
        self, interpret: Callable[[list[Header]], T], max_list_bytes: int = MAX_HEADER_LIST_BYTES
    ) -> None:
        self.max_list_bytes = max_list_bytes
        self.fields = self.list_bytes = 0
        """Fields of the block that was decoded last, and the size of its list."""
        self._decoder = Decoder(max_list_bytes)
        self._interpret = interpret
        self._known: dict[bytes, T] = {}
        self._known_bytes = 0
        self.get = self._known.get

    def add(self, block: bytes) -> T:
        """Return what `interpret` makes of the block's headers, remembered where that is safe.

        Raises Http2Error for a block that cannot be decoded, or that is larger than we accept.
        """
        if len(block) > self.max_list_bytes:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, f"header block of {len(block)} bytes")
        if _MANY_UPDATES.match(block):
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "too many table size updates")
        table = self._decoder.header_table.dynamic_entries
        before = (len(table), table[0] if table else None)
        try:
            headers: list[Header] = list(self._decoder.decode(block, raw=True))
        except OversizedHeaderListError as exc:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, str(exc)) from exc
        except HPACKError as exc:
            raise Http2Error(ErrorCode.COMPRESSION_ERROR, str(exc)) from exc
        after = (len(table), table[0] if table else None)
        self.fields = len(headers)
        self.list_bytes = sum(len(name) + len(value) for name, value in headers) + _FIELD_BYTES * self.fields
        result = self._interpret(headers)
        resizes = bool(block) and block[0] & 0xE0 == 0x20
        if resizes or before[0] != after[0] or before[1] is not after[1]:
            self._forget()
        elif self.list_bytes <= _CACHED_LIST_BYTES:
            if self._known_bytes > _CACHED_BYTES:
                self._forget()
            self._known[block] = result
            self._known_bytes += self.list_bytes + _ENTRY_BYTES
        return result

    def _forget(self) -> None:
        self._known.clear()
        self._known_bytes = 0


def encode_stateless(headers: Iterable[Header]) -> bytes:
    """A block of literals without indexing (RFC 7541 section 6.2.2): the same bytes are valid on every
    stream."""
    out = bytearray()
    for name, value in headers:
        if (name, value) == (b":method", b"POST"):
            out.append(0x83)
        elif (name, value) == (b":scheme", b"http"):
            out.append(0x86)
        elif (name, value) == (b":scheme", b"https"):
            out.append(0x87)
        elif (name, value) == (b":status", b"200"):
            out.append(0x88)
        else:
            index = _STATIC_NAMES.get(name)
            if index is None:
                out += b"\x00" + _integer(len(name), 7) + name
            else:
                out += _integer(index, 4)
            out += _integer(len(value), 7) + value
    return bytes(out)


def _integer(value: int, prefix_bits: int) -> bytes:
    """RFC 7541 section 5.1, with zero bits before the prefix."""
    limit = (1 << prefix_bits) - 1
    if value < limit:
        return bytes((value,))
    out = bytearray((limit,))
    value -= limit
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
