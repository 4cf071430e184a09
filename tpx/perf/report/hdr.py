"""HdrHistogram's encoding, version 2, and its log: one line per window, tagged by its level, in ns.

The layout of buckets and bytes follows HdrHistogram's documentation of AbstractHistogram and of the
log.
"""

import base64
import struct
import zlib
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tpx.perf.records import LevelRecords, succeeded
from tpx.perf.report.recorders import RecorderFile
from tpx.protocol.tensors import Array

DIGITS = 3
"""Significant decimal digits."""
_HALF_BITS = 10
_HALF = 1 << _HALF_BITS
"""Half of the linear sub-buckets per bucket, which are 2 * 10**DIGITS rounded up to a power of two."""
_COOKIE = 0x1C849303 | 0x10
_COMPRESSED_COOKIE = 0x1C849304 | 0x10
_HEADER = struct.Struct(">iiiiqqd")


def encode(values: Array) -> str:
    """Encode integers of at least 0 as a compressed histogram in base64."""
    counts = np.bincount(_places(values)) if len(values) else np.zeros(0, np.int64)
    payload = _zigzag(counts.tolist())
    highest = max(2, int(values.max())) if len(values) else 2
    head = _HEADER.pack(_COOKIE, len(payload), 0, DIGITS, 1, highest, 1.0)
    squeezed = zlib.compress(head + payload)
    return base64.b64encode(struct.pack(">ii", _COMPRESSED_COOKIE, len(squeezed)) + squeezed).decode()


def _places(values: Array) -> npt.NDArray[np.int64]:
    """Return the index of each value's count."""
    whole = np.maximum(values, 0).astype(np.int64)
    # the exponent of a double is the bit length of an integer below 2**53
    _, bits = np.frexp((whole | (2 * _HALF - 1)).astype(np.float64))
    bucket = bits.astype(np.int64) - _HALF_BITS - 1
    places: npt.NDArray[np.int64] = ((bucket + 1) << _HALF_BITS) + (whole >> bucket) - _HALF
    return places


def _zigzag(counts: list[int]) -> bytes:
    """Encode counts as ZigZag LEB128; a run of zeros is one negative number."""
    out = bytearray()
    zeros = 0
    for count in counts:
        if not count:
            zeros += 1
            continue
        if zeros:
            _put(out, -zeros)
            zeros = 0
        _put(out, count)
    return bytes(out)


def _put(out: bytearray, value: int) -> None:
    rest = (value << 1) ^ (value >> 63)
    rest &= (1 << 64) - 1
    for _ in range(8):
        if rest < 0x80:
            out.append(rest)
            return
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)


VERSION = "1.3"
_MAX_UNIT_NS = 1_000_000
"""Unit of the log's column of maxima: milliseconds."""


class HdrLog(RecorderFile):
    """Implements Recorder: one histogram per window."""

    def __init__(self, path: Path, offset_ns: int) -> None:
        super().__init__(path, offset_ns)
        self._begun = False

    def record(self, level: LevelRecords) -> None:
        self._head((level.borders_ns or (0,))[0])
        tag = f"{level.level.mode}={level.level.value:g}"
        for i, (start, end) in enumerate(zip(level.borders_ns, level.borders_ns[1:], strict=False)):
            first, last = level.indices[i : i + 2]
            good = succeeded(level.records.between(first, last))
            latency = good["end_ns"] - good["intended_ns"]
            most = int(latency.max()) / _MAX_UNIT_NS if len(latency) else 0.0
            at_s, took_s = (start + self.offset_ns) / 1e9, (end - start) / 1e9
            line = f"Tag={tag},{at_s:.3f},{took_s:.3f},{most:.3f},{encode(latency)}\n"
            self.write(line.encode())

    def close(self) -> None:
        self._head(0)
        super().close()

    def _head(self, begun_ns: int) -> None:
        if self._begun:
            return
        self._begun = True
        start_s = (begun_ns + self.offset_ns) / 1e9
        when = datetime.fromtimestamp(start_s, UTC).isoformat(timespec="milliseconds")
        self.write(
            f"#[Logged by tpx perf]\n#[Histogram log format version {VERSION}]\n"
            f"#[StartTime: {start_s:.3f} (seconds since epoch), {when}]\n"
            '"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"\n'.encode()
        )
