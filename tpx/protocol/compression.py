"""Compressed bodies and messages: gzip and deflate (zlib), with a limit on the decompressed size."""

import gzip
import zlib

from tpx.errors import Code, InvalidRequest, Unsupported
from tpx.protocol.tensors import Buffer

ENCODINGS = ("gzip", "deflate")

SHORT_BYTES = 64 << 10
"""Largest result, in bytes, that is quick enough to decompress without a thread."""

WINDOW_BITS = {"gzip": 31, "deflate": 15}
"""zlib's `wbits` for each encoding."""


def inflate(data: Buffer, encoding: str, limit: int) -> bytes:
    """Decompress a complete body.

    Raises Unsupported for an unknown encoding, InvalidRequest for invalid or truncated data or trailing
    bytes, and InvalidRequest with code RESOURCE_EXHAUSTED as soon as the result exceeds `limit` bytes.
    """
    check_encoding(encoding)
    if not len(data):
        raise InvalidRequest("nothing to be decompressed")
    inflater = zlib.decompressobj(WINDOW_BITS[encoding])
    try:
        out = inflater.decompress(data, limit + 1)
    except zlib.error as exc:
        raise InvalidRequest(f"body is not valid {encoding} data: {exc}") from exc
    except MemoryError:
        raise InvalidRequest("no memory for the decompressed body", code=Code.RESOURCE_EXHAUSTED) from None
    if len(out) > limit:
        raise too_large(limit)
    if not inflater.eof or inflater.unused_data:
        raise InvalidRequest(f"body is not one complete {encoding} stream")
    return out


def check_encoding(encoding: str) -> None:
    """Raise Unsupported for an unknown encoding."""
    if encoding not in WINDOW_BITS:
        raise Unsupported(f"Unsupported compression type provided: '{encoding}' (known: gzip, deflate)")


def too_large(limit: int) -> InvalidRequest:
    """Return the error for a body that decompresses to more than `limit` bytes."""
    return InvalidRequest(
        f"decompressed body exceeds the maximum allowed input size of {limit} bytes",
        code=Code.RESOURCE_EXHAUSTED,
    )


def inflate_if_short(data: Buffer, encoding: str, limit: int) -> bytes | None:
    """Decompress like `inflate`, but return None if the result exceeds SHORT_BYTES: for the event loop."""
    if len(data) > SHORT_BYTES:
        return None
    try:
        return inflate(data, encoding, min(limit, SHORT_BYTES))
    except InvalidRequest as exc:
        if exc.code is Code.RESOURCE_EXHAUSTED and limit > SHORT_BYTES:
            return None
        raise


def deflate(data: Buffer, encoding: str, level: int = 6) -> bytes:
    """Compress with one of ENCODINGS."""
    if encoding == "gzip":
        return gzip.compress(data, level, mtime=0)
    return zlib.compress(data, level)
