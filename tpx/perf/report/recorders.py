"""The files that are made of single requests, as one Recorder."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tpx.errors import MeasurementError
from tpx.perf.options import PerfConfig
from tpx.perf.recording import LevelRecords, Recorder
from tpx.perf.records import Records

if TYPE_CHECKING:
    from tpx.perf.capture import Capture

_EXPORTED_KINDS = {"inprocess": "triton_c_api"}
"""What perf_analyzer calls them, where it has other names."""


class _All:
    """Implements Recorder: every one of several.

    One that fails is left out from then on, with its reason among the problems: a full disk costs a file and
    not the measurement.
    """

    def __init__(self, recorders: Sequence[Recorder], problems: list[str]) -> None:
        self._recorders = list(recorders)
        self._problems = problems

    def begin(self, records: Records) -> None:
        self._each(lambda recorder: recorder.begin(records))

    def record(self, level: LevelRecords) -> None:
        self._each(lambda recorder: recorder.record(level))

    def close(self) -> None:
        self._each(lambda recorder: recorder.close())

    def abandon(self) -> None:
        for recorder in self._recorders:
            recorder.abandon()

    def _each(self, call: Callable[[Recorder], None]) -> None:
        for recorder in list(self._recorders):
            try:
                call(recorder)
            except MeasurementError as exc:
                self._problems.append(str(exc))
                self._recorders.remove(recorder)
                recorder.abandon()


@contextmanager
def open_recorders(
    config: PerfConfig, capture: "Capture | None", offset_ns: int, problems: list[str]
) -> Iterator[Recorder | None]:
    """What writes the records of a run; None where no file of them was asked for.

    The files are there when the context ends, but for those that `problems` tells of then; where it ends with
    an error none is left.
    """
    recorders: list[Recorder] = []
    if config.profile_export_file is not None and capture is not None:
        from tpx.perf.report.profile_export import ProfileExport  # late, as each of them

        kind = _EXPORTED_KINDS.get(config.service_kind, config.service_kind)
        service = (kind, config.service.path)
        recorders.append(ProfileExport(config.profile_export_file, capture, service, offset_ns))
    if config.jsonl is not None:
        from tpx.perf.report.jsonl import JsonLines

        recorders.append(JsonLines(config.jsonl, offset_ns))
    if config.hdr_log is not None:
        from tpx.perf.report.hdr_log import HdrLog

        recorders.append(HdrLog(config.hdr_log, offset_ns))
    if not recorders:
        yield None
        return
    every = _All(recorders, problems)
    try:
        yield every
    except BaseException:
        every.abandon()
        raise
    every.close()
