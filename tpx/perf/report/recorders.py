"""The files that are made of single requests, as one Recorder."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tpx.perf.capture import Capture
from tpx.perf.options import PerfConfig
from tpx.perf.recording import LevelRecords, Recorder
from tpx.perf.records import Records
from tpx.perf.report.hdr_log import HdrLog
from tpx.perf.report.jsonl import JsonLines
from tpx.perf.report.profile_export import ProfileExport

_EXPORTED_KINDS = {"inprocess": "triton_c_api"}
"""What perf_analyzer calls them, where it has other names."""


class _All:
    """Implements Recorder: every one of several."""

    def __init__(self, recorders: Sequence[Recorder]) -> None:
        self._recorders = recorders

    def begin(self, records: Records) -> None:
        for recorder in self._recorders:
            recorder.begin(records)

    def record(self, level: LevelRecords) -> None:
        for recorder in self._recorders:
            recorder.record(level)

    def close(self) -> None:
        for recorder in self._recorders:
            recorder.close()

    def abandon(self) -> None:
        for recorder in self._recorders:
            recorder.abandon()


@contextmanager
def open_recorders(config: PerfConfig, capture: Capture | None, offset_ns: int) -> Iterator[Recorder | None]:
    """What writes the records of a run; None where no file of them was asked for.

    The files are there when the context ends; where it ends with an error none is left.
    """
    recorders: list[Recorder] = []
    if config.profile_export_file is not None and capture is not None:
        kind = _EXPORTED_KINDS.get(config.service_kind, config.service_kind)
        service = (kind, config.endpoint)
        recorders.append(ProfileExport(config.profile_export_file, capture, service, offset_ns))
    if config.jsonl is not None:
        recorders.append(JsonLines(config.jsonl, offset_ns))
    if config.hdr_log is not None:
        recorders.append(HdrLog(config.hdr_log, offset_ns))
    if not recorders:
        yield None
        return
    every = _All(recorders)
    try:
        yield every
    except BaseException:
        every.abandon()
        raise
    every.close()
