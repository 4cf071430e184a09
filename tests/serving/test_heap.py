"""How much memory there is, and when what was freed is given back."""

from pathlib import Path

import pytest

from tpx.serving.heap import Trimmer, _iter_group_limits, available_bytes, resident_bytes

MB = 1 << 20


class FakeProcess:
    """Its memory, and what of it requests and answers take."""

    def __init__(self) -> None:
        self.resident = 100 * MB
        self.held = 0
        self.trimmer = Trimmer(lambda: self.held, lambda: self.resident)

    def due_after(self, seconds: int) -> int:
        """After how many seconds it is time to trim; -1: not within them."""
        return next((second for second in range(1, seconds + 1) if self.trimmer.is_due()), -1)


def test_memory_is_given_back_once_those_who_needed_it_are_gone() -> None:
    process = FakeProcess()
    process.resident, process.held = 900 * MB, 700 * MB
    assert process.due_after(10) == -1, "it will be needed again"
    process.held = 0
    assert process.due_after(5) == 2
    process.trimmer.trim()
    process.resident = 110 * MB
    assert process.due_after(100) == -1


def test_memory_that_models_use_is_asked_for_less_and_less_often() -> None:
    process = FakeProcess()
    process.resident = 900 * MB
    waits = []
    for _ in range(8):
        waits.append(process.due_after(2000))
        process.trimmer.trim()
    assert waits[:4] == [1, 31, 61, 121]
    assert max(waits) == waits[-1] == 601


def test_an_attempt_in_vain_does_not_delay_the_one_after_requests_have_left() -> None:
    process = FakeProcess()
    process.resident, process.held = 900 * MB, 150 * MB
    assert process.due_after(5) == 1
    process.trimmer.trim()
    process.held = 0
    assert process.due_after(5) == 2


def test_little_that_was_freed_is_kept() -> None:
    process = FakeProcess()
    process.resident = 140 * MB
    assert process.due_after(100) == -1


@pytest.mark.parametrize(
    ("membership", "files", "limits"),
    [
        ("0::/a/b\n", {"memory.max": "max", "a/memory.max": "5000", "a/b/memory.max": "7000"}, [5000, 7000]),
        ("0::/\n", {"memory.max": "4096\n"}, [4096]),
        (
            "5:cpu:/x\n4:memory:/x\n0::/\n",
            {"memory/memory.limit_in_bytes": "9000", "memory/x/memory.limit_in_bytes": "3000"},
            [9000, 3000],
        ),
        ("0::/gone\n", {}, []),
    ],
)
def test_control_groups_limit_memory_at_every_level(
    tmp_path: Path, membership: str, files: dict[str, str], limits: list[int]
) -> None:
    (tmp_path / "cgroup").write_text(membership, encoding="utf-8")
    for name, text in files.items():
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert list(_iter_group_limits(tmp_path / "cgroup", tmp_path / "root")) == limits


def test_a_system_without_control_groups_has_no_limits(tmp_path: Path) -> None:
    assert list(_iter_group_limits(tmp_path / "cgroup", tmp_path)) == []


def test_this_process_has_some_of_the_memory_that_there_is() -> None:
    assert 1 * MB < resident_bytes() < available_bytes()
