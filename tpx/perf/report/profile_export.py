"""perf_analyzer's profile export, which genai-perf reads: each request with its inputs, outputs and
times.

It is written level by level, so that at most one level's records are in memory.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import orjson

from tpx import __version__
from tpx.errors import InvalidRequest
from tpx.perf.capture import Capture, read_outputs
from tpx.perf.clients.openai import INPUT, sent
from tpx.perf.levels import CONCURRENCY, PERIODIC_CONCURRENCY, REQUEST_RATE
from tpx.perf.records import SUCCESS, LevelRecords, Records
from tpx.perf.report.recorders import RecorderFile
from tpx.protocol.tensors import Tensor, decode_bytes, encode_bytes

WHOLE_TIME = (0, 2**64 - 1)
"""Window of a periodic concurrency, which has no windows of its own."""


class ProfileExport(RecorderFile):
    """Implements Recorder: the profile export file."""

    def __init__(self, path: Path, capture: Capture, service: tuple[str, str], offset_ns: int) -> None:
        """`service` is its kind and endpoint, as perf_analyzer names them."""
        super().__init__(path, offset_ns)
        self._capture = capture
        self._service = service
        self._inputs: dict[int, bytes] = {}
        self._failed = 0
        self._levels = 0
        self.write(b'{"experiments":[')

    def begin(self, records: Records) -> None:
        self._capture.begin(records)

    def record(self, level: LevelRecords) -> None:
        write = self.write
        write(b",{" if self._levels else b"{")
        self._levels += 1
        kind, value = level.level.kind, level.level.value
        experiment: dict[str, object] = {"mode": "concurrency", "value": int(value)}
        if kind is not CONCURRENCY:
            # perf_analyzer has no value for a user's own schedule
            experiment = {"mode": "request_rate", "value": float(value) if kind is REQUEST_RATE else 0.0}
        write(b'"experiment":' + orjson.dumps(experiment) + b',"requests":[')
        separator = b""
        for request in self._iter_requests(level):
            write(separator + request)
            separator = b","
        boundaries = [t + self.offset_ns for t in level.borders_ns]
        if kind is PERIODIC_CONCURRENCY:
            boundaries = list(WHOLE_TIME)
        write(b'],"window_boundaries":' + orjson.dumps(boundaries) + b"}")

    def close(self) -> None:
        kind, endpoint = self._service
        tail = {"version": __version__, "service_kind": kind, "endpoint": endpoint}
        ours = {"tpx": {"failed_requests": self._failed}}
        self.write(b"]," + orjson.dumps(tail | ours)[1:])
        super().close()

    def _iter_requests(self, level: LevelRecords) -> Iterator[bytes]:
        for piece in level.pieces():
            numbers, times = piece.numbers, piece.times
            stored = self._capture.stored(numbers)
            columns = (piece.rows[name].tolist() for name in ("status", "start_ns", "sequence"))
            for i, (status, start_ns, sequence) in enumerate(zip(*columns, strict=True)):
                if status != SUCCESS:
                    self._failed += 1
                    continue
                key, place = stored.get(numbers[i], (-1, -1))
                yield b"".join(
                    (
                        b'{"timestamp":%d' % (start_ns + self.offset_ns),
                        b',"sequence_id":%d' % sequence if sequence else b"",
                        b',"request_inputs":',
                        self._encode_input(key),
                        b',"response_timestamps":',
                        orjson.dumps(times.of_row(i, self.offset_ns)),
                        b',"response_outputs":',
                        self._encode_outputs(place),
                        b"}",
                    )
                )

    def _encode_input(self, key: int) -> bytes:
        """Return the inputs of a request as JSON, encoded once per distinct request."""
        if key < 0:
            return b"{}"
        if key not in self._inputs:
            tensors = self._capture.inputs[key]
            if self._service[0] == "openai":
                body = encode_bytes([sent(self._capture.requests[key])])
                whole = Tensor(INPUT.name, INPUT.datatype, INPUT.shape, body)
                tensors = tuple(whole if t.name == INPUT.name else t for t in tensors)
            self._inputs[key] = tensors_json(tensors)
        return self._inputs[key]

    def _encode_outputs(self, place: int) -> bytes:
        if place < 0:
            return b"[]"
        try:
            return b"[" + b",".join(map(tensors_json, read_outputs(self._capture.read(place)))) + b"]"
        except InvalidRequest:
            return b"[]"  # keep the request of an unreadable response, without outputs


def tensors_json(tensors: Sequence[Tensor]) -> bytes:
    """Return `{"NAME":[1,2],"TEXT":"abc"}`: a single element is a scalar, several are a flat list."""
    return b"{" + b",".join(orjson.dumps(t.name) + b":" + _encode_values(t) for t in tensors) + b"}"


def _encode_values(tensor: Tensor) -> bytes:
    if not len(tensor.data):
        return b'""'
    if tensor.datatype == "BYTES":
        count = int(np.prod(tensor.shape, dtype=np.int64))
        texts = [item.decode("utf-8", "replace") for item in decode_bytes(tensor.data, count)]
        return orjson.dumps(texts[0] if len(texts) == 1 else texts)
    array = tensor.numpy().reshape(-1)
    if array.dtype.kind == "f":
        array = array.astype(np.float64)  # perf_analyzer prints an FP32 with the digits of a double
    elif array.dtype.kind not in "iub":
        return b'""'
    return orjson.dumps(array[0].item() if len(array) == 1 else array, option=orjson.OPT_SERIALIZE_NUMPY)
