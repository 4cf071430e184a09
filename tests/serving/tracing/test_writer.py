"""The trace file: complete JSON at any time, in portions, on disks that become full."""

import itertools
import json
import logging
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tpx.serving.tracing import writer as writing
from tpx.serving.tracing.queue import TraceQueue
from tpx.serving.tracing.settings import TraceSetting
from tpx.serving.tracing.trace import Trace
from tpx.serving.tracing.writer import TraceFile, TracePortion, TraceWriter


def setting(**values: int) -> TraceSetting:
    return TraceSetting(trace_level=("TIMESTAMPS",), **values)  # type: ignore[arg-type]


def texts(*numbers: int) -> list[bytes]:
    return [b'{"id":%d}' % number for number in numbers]


def ids(path: Path) -> list[int]:
    """The ids in a complete file."""
    return [record["id"] for record in json.loads(path.read_bytes())]


def numbered(path: Path) -> list[list[int]]:
    """The ids in the numbered files, by number."""
    count = len(list(path.parent.glob(f"{path.name}.*")))
    return [ids(path.with_name(f"{path.name}.{index}")) for index in range(count)]


def portion(file: TraceFile, setting: TraceSetting) -> TracePortion:
    return TracePortion(file, setting, TraceQueue(file, str(file.path), limit=1))


def test_only_the_owner_may_read_what_clients_sent(path: Path) -> None:
    file = TraceFile(path)
    file.append(texts(1))
    file.number(texts(2))
    file.close()
    modes = {each.name: each.stat().st_mode & 0o777 for each in path.parent.iterdir()}
    assert modes == {path.name: 0o600, f"{path.name}.0": 0o600}


def test_numbered_files_are_made_at_a_bounded_rate_and_later_ones_have_more_traces(path: Path) -> None:
    now_s = [0.0]
    file = TraceFile(path, lambda: now_s[0])
    group = portion(file, setting(log_frequency=1))
    for number in range(150):
        group.take(texts(number)[0], complete=False)
    assert numbered(path) == [[number] for number in range(100)]
    now_s[0] = 0.1
    group.take(texts(150)[0], complete=False)
    assert numbered(path)[100:] == [list(range(100, 151))]
    group.take(texts(151)[0], complete=False)
    group.flush()  # the setting ends
    assert ids(path) == [151]
    file.close()


@contextmanager
def no_file_over(size: int) -> Iterator[None]:
    """The disk becomes full at this size of a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


def test_the_file_is_complete_after_every_write(path: Path) -> None:
    path.write_text("of another server, and longer than what comes now" * 9, encoding="utf-8")
    file = TraceFile(path)
    for count in range(1, 5):
        file.append(texts(count))
        assert ids(path) == list(range(1, count + 1))
    file.append(texts(5, 6))
    file.close()
    assert ids(path) == [1, 2, 3, 4, 5, 6]


def test_every_so_many_go_to_the_next_numbered_file(path: Path) -> None:
    group = portion(TraceFile(path), setting(log_frequency=2))
    assert [group.take(text, complete=False) for text in texts(1, 2, 3, 4, 5)] == [0, 2, 0, 2, 0]
    assert group.flush() == 1
    assert numbered(path) == [[1, 2], [3, 4], [5]]
    assert not path.exists()
    assert group.flush() == 0


def test_without_an_end_in_sight_they_go_to_the_file_as_they_come(path: Path) -> None:
    group = portion(TraceFile(path), setting())
    for number, text in enumerate(texts(1, 2, 3), 1):
        assert group.take(text, complete=False) == 1
        assert ids(path)[-1] == number


def test_a_counted_setting_that_is_complete_goes_to_a_numbered_file(path: Path) -> None:
    group = portion(TraceFile(path), setting(trace_count=3))
    assert [group.take(text, complete=text == texts(3)[0]) for text in texts(1, 2, 3)] == [0, 0, 3]
    assert numbered(path) == [[1, 2, 3]]


def test_a_counted_setting_that_ends_early_goes_to_the_file(path: Path) -> None:
    group = portion(TraceFile(path), setting(trace_count=3))
    group.take(texts(1)[0], complete=False)
    assert not path.exists()
    group.flush()
    assert ids(path) == [1]


def test_what_is_held_back_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_MAX_HELD_BYTES", 20)
    group = portion(TraceFile(path), setting(trace_count=1000))
    assert [group.take(text, complete=False) for text in texts(1, 2, 3, 4)] == [0, 0, 3, 0]
    assert ids(path) == [1, 2, 3]


def test_groups_share_the_file_and_its_numbers(path: Path) -> None:
    file = TraceFile(path)
    one, other = (portion(file, setting(log_frequency=1)) for _ in range(2))
    plain = portion(file, setting())
    one.take(texts(1)[0], complete=False)
    other.take(texts(2)[0], complete=False)
    plain.take(texts(3)[0], complete=False)
    assert (numbered(path), ids(path)) == ([[1], [2]], [3])


def test_a_file_that_outgrows_the_disk_stays_what_it_was(path: Path) -> None:
    file = TraceFile(path)
    file.append(texts(1))
    with no_file_over(64), pytest.raises(OSError, match="File too large"):
        file.append([b'{"id":2,"more":"' + b"x" * 200 + b'"}'])
    assert ids(path) == [1]
    file.append(texts(3))
    assert ids(path) == [1, 3]


def test_a_numbered_file_that_outgrows_the_disk_is_not_there(path: Path) -> None:
    group = portion(TraceFile(path), setting(log_frequency=1))
    with no_file_over(64), pytest.raises(OSError, match="File too large"):
        group.take(b'{"id":1,"more":"' + b"x" * 200 + b'"}', complete=False)
    assert list(path.parent.iterdir()) == []
    group.take(texts(2)[0], complete=False)
    assert numbered(path) == [[2]]


# the thread


class Holding(Trace):
    """A trace that can wait before it is written, and that holds as many bytes as a test says."""

    __slots__ = ("gate",)
    gate: threading.Event | None

    def records(self) -> list[dict[str, Any]]:
        if self.gate is not None:
            assert self.gate.wait(10)
        return [{"id": self.id}]


def trace(number: int, *, size: int = 0, gate: threading.Event | None = None) -> Trace:
    made = Holding(itertools.count(number).__next__, ("TIMESTAMPS",), lambda _: None)
    made.size, made.gate = size, gate
    return made


def add(group: TracePortion, *numbers: int) -> None:
    for number in numbers:
        group.add(trace(number), complete=False)


def test_traces_are_written_in_a_thread_of_their_own_which_ends(path: Path) -> None:
    writer = TraceWriter(path)
    group = writer.group(setting(trace_count=9))
    assert "trace-writer" not in [thread.name for thread in threading.enumerate()]
    add(group, 1, 2)
    assert "trace-writer" in [thread.name for thread in threading.enumerate()]
    group.end()
    writer.close()
    assert ids(path) == [1, 2]
    assert "trace-writer" not in [thread.name for thread in threading.enumerate()]
    add(group, 3)
    assert ids(path) == [1, 2]


class MakesDirectory(threading.Event):
    """A gate in the writer's thread: a directory is there from then on."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory

    def wait(self, timeout: float | None = None) -> bool:
        self._directory.mkdir()
        return True


def test_a_disk_that_refuses_is_told_once_and_its_end_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tpx")
    path = tmp_path / "later" / "trace.json"
    writer = TraceWriter(path)
    group = writer.group(setting())
    add(group, 1, 2, 3)
    group.add(trace(4, gate=MakesDirectory(path.parent)), complete=False)
    add(group, 5)
    writer.close()
    assert [record.getMessage() for record in caplog.records] == [
        f"trace file '{path}' does not accept traces: No such file or directory; they are dropped until it "
        "does",
        f"trace file '{path}' accepts traces again",
    ]
    assert ids(path) == [4, 5]


def test_a_directory_that_has_gone_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = TraceWriter(tmp_path / "gone" / "trace.json")
    add(writer.group(setting()), 1, 2)
    add(writer.group(setting(log_frequency=1)), 3)
    writer.close()
    [told] = [record.getMessage() for record in caplog.records]
    assert "No such file or directory" in told


def test_a_disk_that_does_not_keep_up_costs_traces_not_memory(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "_MAX_WAITING_BYTES", 4 * writing._TRACE_BYTES)
    gate = threading.Event()
    writer = TraceWriter(path)
    group = writer.group(setting())
    for number in range(1, 21):
        group.add(trace(number, gate=gate), complete=False)
    gate.set()
    writer.close()
    assert len(ids(path)) in (4, 5)  # one may be in the thread's hands
    assert [record.getMessage() for record in caplog.records] == [
        f"dropped a trace: the queue of trace file '{path}' is full (0 before)"
    ]


def test_the_tensors_that_wait_are_bounded(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "_MAX_WAITING_BYTES", 1 << 20)
    gate = threading.Event()
    writer = TraceWriter(path)
    group = writer.group(setting())
    for number in (1, 2, 3, 4):
        group.add(trace(number, size=450_000, gate=gate), complete=False)
    gate.set()
    writer.close()
    assert ids(path) in ([1, 2], [1, 2, 3], [1, 2, 4])  # one may be in the thread's hands
    assert "is full" in caplog.text
