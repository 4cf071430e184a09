"""Files of single requests: JSON lines, and that no half a file is ever there."""

import json
import os
import stat
from pathlib import Path

import pytest

from tests.perf.conftest import make_records
from tpx.errors import MeasurementError
from tpx.perf.clients.base import Failure
from tpx.perf.levels import Level
from tpx.perf.measure.ledger import Ending, LevelLedger, MeasuredLevel, WindowBorder
from tpx.perf.records import Records
from tpx.perf.report.recorders import JsonLines
from tpx.perf.settings import LevelSettings

OFFSET = 10**18


def level(records: Records, *indices: int) -> MeasuredLevel:
    ledger = LevelLedger(records, LevelSettings(), Level("request_rate", 12.5), 1)
    first, *others = (
        WindowBorder(time_ns=i * 1_000_000, index=i, server=None, cpu_ns=0, read_ns=i) for i in indices
    )
    ledger.begin(first)
    for border in others:
        ledger.close(border)
    failures = {500: Failure("HTTP 500", "no")}
    return ledger.measured(lambda *_: None, Ending(failures=failures, failed=1, interrupted=False))


def written(path: Path, measured: MeasuredLevel) -> list[dict[str, object]]:
    out = JsonLines(path, OFFSET)
    out.record(measured)
    out.close()
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_request_of_every_window_has_a_line(tmp_path: Path) -> None:
    lines = written(tmp_path / "a", level(make_records([1, 2, 3, 4], failed_at=[2]), 0, 2, 4))
    assert [line["window"] for line in lines] == [1, 1, 2, 2]
    assert [line["ok"] for line in lines] == [True, True, False, True]
    assert lines[2]["error"] == "HTTP 500"
    assert "error" not in lines[3]
    assert lines[0]["end_ns"] == OFFSET + 1_000_000
    assert (lines[0]["mode"], lines[0]["value"], lines[0]["latency_us"]) == ("request_rate", 12.5, 1000.0)


def test_requests_behind_the_last_window_are_not_written(tmp_path: Path) -> None:
    assert len(written(tmp_path / "a", level(make_records([1, 2, 3, 4]), 0, 3))) == 3


def test_responses_of_a_stream_have_their_times_and_sequences_their_number(tmp_path: Path) -> None:
    records = Records()
    records.append(0, 0, 1, 5, 9, 0, 2, 7, 41)
    records.arrivals.extend([5, 9])
    (line,) = written(tmp_path / "a", level(records, 0, 1))
    assert line["responses_ns"] == [OFFSET + 5, OFFSET + 9]
    assert (line["step"], line["sequence"]) == (7, 41)


def test_a_file_is_there_only_when_it_is_complete(tmp_path: Path) -> None:
    file = JsonLines(tmp_path / "a", 0)
    file.write(b"half")
    assert not (tmp_path / "a").exists()
    file.close()
    assert (tmp_path / "a").read_bytes() == b"half"


def test_a_run_that_came_to_nothing_leaves_no_file(tmp_path: Path) -> None:
    file = JsonLines(tmp_path / "a", 0)
    file.write(b"half")
    file.abandon()
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match=r"cannot write .*/no/a: No such file"):
        JsonLines(tmp_path / "no" / "a", 0)


def test_a_device_is_written_to_and_never_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        file = JsonLines(pipe, 0)
        file.write(b"a line\n")
        file.close()
        assert os.read(reading, 100) == b"a line\n"
        JsonLines(pipe, 0).abandon()
    finally:
        os.close(reading)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert list(tmp_path.iterdir()) == [pipe]
