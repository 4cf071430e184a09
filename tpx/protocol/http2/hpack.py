"""Header blocks: decoding with a cache of whole blocks, and stateless encoding.

A gRPC client repeats its header block from call to call. A block that references no dynamic table entry
always decodes to the same headers; one that references some does so until the table changes. The
block's bytes are therefore a cache key. HAProxy repeats blocks that insert entries but never references
these. Repeating such a block skips the insertion, which is made up for before the next block that
misses the cache.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from tpx.protocol.http2.frames import ErrorCode, Http2Error

MAX_HEADER_LIST_BYTES = 64 << 10
"""Largest header list, and header block, that a client accepts; the list's size as in RFC 9113 section
6.5.2.
"""
_FIELD_BYTES = 32
"""Overhead of a field in the size of a table or a list (RFC 7541 section 4.1)."""

_MANY_UPDATES = re.compile(rb"(?:[\x20-\x3e]|\x3f[\x80-\xff]*[\x00-\x7f]){16}")
"""Table size updates, each as costly as a header; an encoder needs two at most (RFC 7541 section 4.2)."""

_CACHED_LIST_BYTES = 4 << 10
_CACHED_BYTES = 128 << 10
"""Limit on the header lists cached per connection; a block of a few bytes may stand for a large list."""
_ENTRY_BYTES = 1 << 10
"""Estimated size of the interpreted result, besides its header list."""

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

_STATIC_FIELDS = {
    (b":method", b"POST"): 0x83,
    (b":scheme", b"http"): 0x86,
    (b":scheme", b"https"): 0x87,
    (b":status", b"200"): 0x88,
}
DEFAULT_TABLE_BYTES = 4096
_TABLE_ENTRIES = DEFAULT_TABLE_BYTES // _FIELD_BYTES
"""Maximum number of entries in a dynamic table."""
_STATIC_ENTRIES = 61
EMPTY_TABLE = b"\x20"
"""Table size update to 0 at the start of a block: empties the sender's table (RFC 7541 section 6.3)."""

Header = tuple[bytes, bytes]


T = TypeVar("T")


class BlockDecoder(Generic[T]):
    """Decoder of one direction of one connection. `get` looks up a cached block, `add` decodes one."""

    def __init__(
        self, interpret: Callable[[list[Header]], T], max_list_bytes: int = MAX_HEADER_LIST_BYTES
    ) -> None:
        self.max_list_bytes = max_list_bytes
        self.fields = self.list_bytes = 0
        """Number of fields, and header list size, of the last decoded block; 0 if `add` found it cached."""
        # late: it builds tables of 0.7 MB, and a server may have HTTP/1 clients only
        from hpack import Decoder

        self._decoder = Decoder(max_list_bytes)
        self._interpret = interpret
        self._known: dict[bytes, T] = {}
        """Results of cached blocks that insert nothing."""
        self._naming: list[bytes] = []
        """Keys of `_known` that reference dynamic table entries."""
        self._inserting: dict[bytes, T] = {}
        """Results of cached blocks that insert entries and reference none."""
        self._due: deque[bytes] = deque(maxlen=_TABLE_ENTRIES)
        """Repeated blocks whose insertions the table still lacks; each evicts at least one older entry."""
        self._known_bytes = 0
        self.get = self._known.get

    def add(self, block: bytes) -> T:
        """Return `interpret`'s result for the block's headers, and cache it if that is safe.

        Raises Http2Error for a block that cannot be decoded or exceeds the size limit.
        """
        again = self._inserting.get(block)
        if again is not None:
            self._due.append(block)
            self._drop_naming_blocks()
            self.fields = self.list_bytes = 0
            return again
        if len(block) > self.max_list_bytes:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, f"header block of {len(block)} bytes")
        if _MANY_UPDATES.match(block):
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "too many table size updates")
        while self._due:
            self._decoder.decode(self._due.popleft(), raw=True)
        from hpack import HPACKError, OversizedHeaderListError

        try:
            headers: list[Header] = list(self._decoder.decode(block, raw=True))
        except OversizedHeaderListError as exc:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, str(exc)) from exc
        except HPACKError as exc:
            raise Http2Error(ErrorCode.COMPRESSION_ERROR, str(exc)) from exc
        self.fields = len(headers)
        self.list_bytes = sum(len(name) + len(value) for name, value in headers) + _FIELD_BYTES * self.fields
        result = self._interpret(headers)
        names, inserts = _find_table_effects(block)
        if inserts:
            self._drop_naming_blocks()
        if self.list_bytes <= _CACHED_LIST_BYTES and not (names and inserts):
            self._cache_block(block, result, names=names, inserts=inserts)
        return result

    def _cache_block(self, block: bytes, result: T, *, names: bool, inserts: bool) -> None:
        # clear all when full: `get` is a plain dict lookup and tracks no use
        if self._known_bytes > _CACHED_BYTES:
            self._known.clear()
            self._naming.clear()
            self._inserting.clear()
            self._known_bytes = 0
        (self._inserting if inserts else self._known)[block] = result
        if names:
            self._naming.append(block)
        self._known_bytes += self.list_bytes + _ENTRY_BYTES

    def _drop_naming_blocks(self) -> None:
        """Drop cached blocks that decode differently now that the table has changed."""
        for block in self._naming:
            del self._known[block]
        self._naming.clear()


def _find_table_effects(block: bytes) -> tuple[bool, bool]:
    """Return (references dynamic table entries, changes the table) for a valid block.

    A table size update counts as both.
    """
    at, names, inserts = 0, False, False
    while at < len(block):
        first = block[at]
        if first & 0xE0 == 0x20:
            return True, True
        indexed, inserting = first & 0x80, first & 0xC0 == 0x40
        index, at = _read_integer(block, at, 7 if indexed else 6 if inserting else 4)
        names, inserts = names or index > _STATIC_ENTRIES, inserts or inserting
        for _ in range(
            0 if indexed else 1 if index else 2
        ):  # skip the value, and the name unless it is indexed
            length, at = _read_integer(block, at, 7)
            at += length
    return names, inserts


def _read_integer(block: bytes, at: int, prefix_bits: int) -> tuple[int, int]:
    """Return the integer at `at` (RFC 7541 section 5.1) and the position after it."""
    limit = (1 << prefix_bits) - 1
    value, at, shift = block[at] & limit, at + 1, 0
    if value < limit:
        return value, at
    while True:
        byte = block[at]
        at += 1
        value += (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def encode_stateless(headers: Iterable[Header]) -> bytes:
    """Encode headers as literals without indexing (RFC 7541 section 6.2.2), valid on every stream."""
    out = bytearray()
    for name, value in headers:
        indexed = _STATIC_FIELDS.get((name, value))
        if indexed is not None:
            out.append(indexed)
            continue
        index = _STATIC_NAMES.get(name)
        out += b"\x00" + _encode_integer(len(name), 7) + name if index is None else _encode_integer(index, 4)
        out += _encode_integer(len(value), 7) + value
    return bytes(out)


def _encode_integer(value: int, prefix_bits: int) -> bytes:
    """Encode an integer (RFC 7541 section 5.1), with zero bits before the prefix."""
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
