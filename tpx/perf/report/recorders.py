"""Files about single requests, combined into one Collector: JSON lines, and perf_analyzer's profile export,
which genai-perf reads, with the inputs, outputs and times of each request.

Both are written level by level, so that at most one level's records are in memory.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import orjson

from tpx import __version__
from tpx.errors import InvalidRequest, MeasurementError
from tpx.perf.capture import Capture, read_outputs
from tpx.perf.clients.openai import INPUT, sent
from tpx.perf.levels import CONCURRENCY, PERIODIC_CONCURRENCY, REQUEST_RATE
from tpx.perf.measure.ledger import MeasuredLevel
from tpx.perf.options import SessionSpec
from tpx.perf.records import MODEL_SHIFT, SUCCESS, Piece, pieces
from tpx.perf.results import LevelResult
from tpx.protocol.tensors import Tensor, decode_bytes, encode_bytes
from tpx.report.files import writing

BUFFER_BYTES = 1 << 20


class RecorderFile(ABC):
    """A file of single requests, written under a temporary name and renamed by `close`.

    A device or a pipe is written directly. Raises MeasurementError if the file cannot be opened, and
    OSError if writing fails. `offset_ns` converts times to nanoseconds since 1970, by a clock that does
    not jump.
    """

    def __init__(self, path: Path, offset_ns: int) -> None:
        self.offset_ns = offset_ns
        self.path = path
        self._as_it_is = path.exists() and not path.is_file()
        self._beside = path if self._as_it_is else path.with_name(f".{path.name}.part")
        with writing(path):
            self._file = self._beside.open("wb", buffering=BUFFER_BYTES)
        self.write = self._file.write

    @abstractmethod
    def record(self, level: MeasuredLevel) -> None:
        """Write a finished level, whatever its result."""

    def close(self) -> None:
        """Complete the file and rename it."""
        self._file.close()
        if not self._as_it_is:
            self._beside.replace(self.path)

    def abandon(self) -> None:
        """Remove the incomplete file."""
        with suppress(OSError):
            self._file.close()
        if not self._as_it_is:
            self._beside.unlink(missing_ok=True)


_TIMES = ("intended_ns", "start_ns", "sent_ns", "first_byte_ns", "end_ns")


def _iter_pieces(level: MeasuredLevel) -> Iterator[Piece]:
    """Yield the rows of all windows."""
    return pieces(level.records, range(level.borders[0].index, level.last.index))


class JsonLines(RecorderFile):
    """One line of JSON per request."""

    def record(self, level: MeasuredLevel) -> None:
        for piece in _iter_pieces(level):
            self._write_piece(level, piece)

    def _write_piece(self, level: MeasuredLevel, piece: Piece) -> None:
        rows, times = piece.rows, piece.times
        at = np.arange(piece.numbers.start, piece.numbers.stop)
        windows = np.searchsorted([border.index for border in level.borders[1:]], at, "right").tolist()
        columns = {name: rows[name].tolist() for name in (*_TIMES, "status", "step", "sequence")}
        head = {"mode": level.level.mode, "value": level.level.value}
        for i in range(len(rows)):
            line: dict[str, object] = head | {"window": windows[i] + 1}
            line |= {name: columns[name][i] + self.offset_ns for name in _TIMES}
            line["latency_us"] = (columns["end_ns"][i] - columns["intended_ns"][i]) / 1000
            status = columns["status"][i]
            line["ok"] = status == SUCCESS
            if status != SUCCESS:
                failure = level.ending.failures.get(status)
                line["error"] = failure.code if failure is not None else str(status)
            if len(level.records.arrivals):
                line["responses_ns"] = times.of_row(i, self.offset_ns)
            model, line["step"] = divmod(columns["step"][i], 1 << MODEL_SHIFT)
            if model:
                line["model"] = model
            if columns["sequence"][i]:
                line["sequence"] = columns["sequence"][i]
            self.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))


class Recorders:
    """Implements Collector: passes each level to several recorders.

    A recorder that fails is dropped and its reason is added to the problems: a full disk costs a file,
    not the measurement.
    """

    def __init__(self, recorders: list[RecorderFile], capture: Capture | None, problems: list[str]) -> None:
        self._recorders = recorders
        self._capture = capture
        self._problems = problems

    async def begin(self) -> None:
        if self._capture is not None:
            self._capture.begin()

    async def finish(self, measured: MeasuredLevel, result: LevelResult) -> LevelResult:
        self._call_each(lambda recorder: recorder.record(measured))
        return result

    def close(self) -> None:
        """Complete the files."""
        self._call_each(lambda recorder: recorder.close())

    def _call_each(self, call: Callable[[RecorderFile], None]) -> None:
        for recorder in list(self._recorders):
            try:
                with writing(recorder.path):
                    call(recorder)
            except MeasurementError as exc:
                self._problems.append(str(exc))
                self._recorders.remove(recorder)
                recorder.abandon()


@contextmanager
def open_recorders(
    config: SessionSpec, capture: Capture | None, offset_ns: int, problems: list[str]
) -> Iterator[Recorders]:
    """Open the recorders of a run.

    The files are complete when the context ends, except those listed in `problems`. If it ends with an
    error, no file is left.
    """
    recorders: list[RecorderFile] = []
    if config.output.profile_export_file is not None and capture is not None:
        kind = config.service.service_kind
        # as perf_analyzer names it
        service = ("triton_c_api" if kind == "inprocess" else kind, config.service.path)
        recorders.append(ProfileExport(config.output.profile_export_file, capture, service, offset_ns))
    if config.output.jsonl is not None:
        recorders.append(JsonLines(config.output.jsonl, offset_ns))
    every = Recorders(recorders, capture, problems)
    try:
        yield every
    except BaseException:
        for recorder in recorders:
            recorder.abandon()
        raise
    every.close()


WHOLE_TIME = (0, 2**64 - 1)
"""Window of a periodic concurrency, which has no windows of its own."""


class ProfileExport(RecorderFile):
    """The profile export file."""

    def __init__(self, path: Path, capture: Capture, service: tuple[str, str], offset_ns: int) -> None:
        """`service` is its kind and endpoint, as perf_analyzer names them."""
        super().__init__(path, offset_ns)
        self._capture = capture
        self._service = service
        self._inputs: dict[int, orjson.Fragment] = {}
        self._failed = 0
        self._levels = 0
        self.write(b'{"experiments":[')

    def record(self, level: MeasuredLevel) -> None:
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
        boundaries = [border.time_ns + self.offset_ns for border in level.borders]
        if kind is PERIODIC_CONCURRENCY:
            boundaries = list(WHOLE_TIME)
        write(b'],"window_boundaries":' + orjson.dumps(boundaries) + b"}")

    def close(self) -> None:
        kind, endpoint = self._service
        tail = {"version": __version__, "service_kind": kind, "endpoint": endpoint}
        additions = {"tpx": {"failed_requests": self._failed}}
        self.write(b"]," + orjson.dumps(tail | additions)[1:])
        super().close()

    def _iter_requests(self, level: MeasuredLevel) -> Iterator[bytes]:
        for piece in _iter_pieces(level):
            numbers, times = piece.numbers, piece.times
            stored = self._capture.stored(numbers)
            columns = (piece.rows[name].tolist() for name in ("status", "start_ns", "sequence"))
            for i, (status, start_ns, sequence) in enumerate(zip(*columns, strict=True)):
                if status != SUCCESS:
                    self._failed += 1
                    continue
                key, place = stored.get(numbers[i], (-1, -1))
                request = {"timestamp": start_ns + self.offset_ns}
                request |= {"sequence_id": sequence} if sequence else {}
                request |= {
                    "request_inputs": self._encode_input(key),
                    "response_timestamps": times.of_row(i, self.offset_ns),
                    "response_outputs": self._read_outputs(place),
                }
                yield orjson.dumps(request, option=orjson.OPT_SERIALIZE_NUMPY)

    def _encode_input(self, key: int) -> object:
        """Return the inputs of a request as JSON, encoded once per distinct request."""
        if key < 0:
            return {}
        if key not in self._inputs:
            tensors = self._capture.inputs[key]
            if self._service[0] == "openai":
                body = encode_bytes([sent(self._capture.requests[key])])
                tensor = Tensor(INPUT.name, INPUT.datatype, INPUT.shape, body)
                tensors = tuple(tensor if t.name == INPUT.name else t for t in tensors)
            encoded = orjson.dumps(named_values(tensors), option=orjson.OPT_SERIALIZE_NUMPY)
            self._inputs[key] = orjson.Fragment(encoded)
        return self._inputs[key]

    def _read_outputs(self, place: int) -> list[dict[str, object]]:
        try:
            return [named_values(t) for t in read_outputs(self._capture.read(place))] if place >= 0 else []
        except InvalidRequest:
            return []  # keep the request of an unreadable response, without outputs


def named_values(tensors: Sequence[Tensor]) -> dict[str, object]:
    """Return the values of tensors by name: a single element is a scalar, several are a flat list."""
    return {tensor.name: _flatten(tensor) for tensor in tensors}


def _flatten(tensor: Tensor) -> object:
    if not len(tensor.data):
        return ""
    if tensor.datatype == "BYTES":
        count = int(np.prod(tensor.shape, dtype=np.int64))
        texts = [item.decode("utf-8", "replace") for item in decode_bytes(tensor.data, count)]
        return texts[0] if len(texts) == 1 else texts
    array = tensor.numpy().reshape(-1)
    if array.dtype.kind == "f":
        array = array.astype(np.float64)  # perf_analyzer prints an FP32 with the digits of a double
    elif array.dtype.kind not in "iub":
        return ""
    return array[0].item() if len(array) == 1 else array
