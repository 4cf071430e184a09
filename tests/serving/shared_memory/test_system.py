"""Files in /dev/shm: what may be registered, and what reads and writes do when a client misbehaves."""

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.shared_memory.reading import read
from tests.serving.shared_memory.segments import descriptors, segment, unused
from tpx.errors import InvalidRequest, Overloaded
from tpx.serving.shared_memory.system import RESERVED_PREFIXES, FilledHoles, SystemRegionMemory, region_limit

PAGE = 4096
MB = 1 << 20


@pytest.fixture
def file() -> Iterator[Path]:
    """Two pages that count upwards."""
    with segment(2 * PAGE, bytes(range(256)) * 32) as path:
        yield path


def opened(file: Path, offset: int = 0, byte_size: int = 64) -> SystemRegionMemory:
    return SystemRegionMemory("r", f"/{file.name}", offset, byte_size, FilledHoles(MB))


def refusal(key: str, offset: int = 0, byte_size: int = 64) -> str:
    """The message that a registration is refused with; it leaves no descriptor behind."""
    before = descriptors()
    with pytest.raises(InvalidRequest) as caught:
        SystemRegionMemory("r", key, offset, byte_size, FilledHoles(MB))
    message = caught.value.message
    del caught
    assert descriptors() <= before  # an earlier test may have left one that is closed meanwhile
    return message


def test_what_a_client_wrote_is_read_from_where_the_region_begins(file: Path) -> None:
    assert read(opened(file), 3, 4) == bytes([3, 4, 5, 6])
    assert read(opened(file, PAGE), 10, 2) == bytes([10, 11])


def test_what_is_written_is_in_the_file_and_nothing_else_is(file: Path) -> None:
    before = file.read_bytes()
    opened(file, PAGE).write(8, b"abcd")
    assert file.read_bytes() == before[: PAGE + 8] + b"abcd" + before[PAGE + 12 :]


def test_what_is_read_is_a_copy_that_the_client_cannot_change(file: Path) -> None:
    data = read(opened(file), 0, 4)
    file.write_bytes(bytes(2 * PAGE))
    assert bytes(data) == bytes([0, 1, 2, 3])


def test_nothing_can_be_read_and_written(file: Path) -> None:
    memory = opened(file)
    assert len(read(memory, 0, 0)) == 0
    memory.write(0, b"")


def test_holes_that_outputs_fill_are_counted_and_bounded_while_their_regions_are_open() -> None:
    """The kernel counts the pages of a client's sparse file as memory of whoever touches them first."""
    with segment(MB) as written, segment(0) as sparse:
        os.truncate(sparse, 8 * MB)
        holes = FilledHoles(2 * MB)
        full = SystemRegionMemory("r", f"/{written.name}", 0, MB, holes)
        for _ in range(3):
            full.write(0, bytes(MB))  # fills nothing
        region = SystemRegionMemory("s", f"/{sparse.name}", 0, 8 * MB, holes)
        region.write(PAGE, bytes(MB))
        region.write(0, bytes(2 * MB))
        with pytest.raises(Overloaded, match="shared memory region 's', which is sparse") as caught:
            region.write(4 * MB, bytes(MB))
        del caught
        assert sparse.stat().st_blocks * 512 == 2 * MB
        del region
        SystemRegionMemory("s", f"/{sparse.name}", 0, 8 * MB, holes).write(4 * MB, bytes(MB))


@pytest.mark.parametrize("slashes", ["", "/", "//"])
def test_a_key_is_a_file_name_with_any_slashes_in_front(file: Path, slashes: str) -> None:
    assert read(SystemRegionMemory("r", slashes + file.name, 0, 2, FilledHoles(MB)), 0, 2) == b"\0\1"


def test_a_name_may_have_odd_characters() -> None:
    odd = unused().with_name(f"tpx_test_{os.getpid()} ü\n%2e'\"")
    odd.write_bytes(b"here")
    try:
        assert read(SystemRegionMemory("r", f"/{odd.name}", 0, 4, FilledHoles(MB)), 0, 4) == b"here"
    finally:
        odd.unlink()


@pytest.mark.parametrize(
    "key", ["", "/", "//", "/.", "..", "/..", "/a/b", "/../../etc/passwd", "/a\0b", "/a/.."]
)
def test_a_key_that_is_no_file_name_is_refused(key: str) -> None:
    assert refusal(key) == (
        f"cannot register shared memory region 'r' - invalid shm key '{key}': it must be the name of a file "
        "in /dev/shm"
    )


@pytest.mark.parametrize("prefix", RESERVED_PREFIXES)
@pytest.mark.parametrize("slashes", ["", "/", "//"])
def test_memory_of_the_servers_own_processes_is_refused_though_it_is_there(prefix: str, slashes: str) -> None:
    key = f"{slashes}{prefix}{os.getpid()}"
    path = Path("/dev/shm") / key.lstrip("/")
    path.write_bytes(bytes(PAGE))
    try:
        assert refusal(key) == (
            f"cannot register shared memory region 'r' with key '{key}' as the key contains the reserved "
            f"prefix '{prefix}'"
        )
    finally:
        path.unlink()


def test_a_key_that_nobody_has_is_refused_with_the_reason() -> None:
    assert refusal("/tpx_nobody") == (
        "Unable to open shared memory region: '/tpx_nobody' (No such file or directory)"
    )


@pytest.mark.parametrize("key", ["/" + "n" * 300, "/half a pair \ud800"])
def test_a_key_that_no_file_can_have_is_refused(key: str) -> None:
    assert refusal(key).startswith(f"Unable to open shared memory region: '{key}'")


def test_a_link_is_not_followed(file: Path) -> None:
    link = unused()
    link.symlink_to(file)
    try:
        assert "symbolic link" in refusal(f"/{link.name}")
    finally:
        link.unlink()


def test_a_directory_and_a_fifo_are_refused() -> None:
    directory, fifo = unused(), unused()
    directory.mkdir()
    os.mkfifo(fifo)
    try:
        assert "Is a directory" in refusal(f"/{directory.name}")
        assert "invalid args" in refusal(f"/{fifo.name}")
    finally:
        directory.rmdir()
        fifo.unlink()


@pytest.mark.parametrize(
    ("offset", "byte_size"),
    [
        (0, 2 * PAGE + 1),
        (PAGE, PAGE + 1),
        (2 * PAGE, 1),
        (1 << 40, 64),
        (2**63 - PAGE, PAGE - 1),
        (0, 2**63 - 1),
    ],
)
def test_bytes_that_the_file_has_not_are_refused(file: Path, offset: int, byte_size: int) -> None:
    assert refusal(f"/{file.name}", offset, byte_size) == (
        "failed to register shared memory region 'r': invalid args"
    )


def test_an_offset_within_a_page_is_refused_and_says_why(file: Path) -> None:
    assert refusal(f"/{file.name}", 8) == (
        "failed to register shared memory region 'r': invalid args: offset 8 is no multiple of the page "
        "size, 4096"
    )


def test_a_region_closes_with_its_last_reference(file: Path) -> None:
    before = descriptors()
    memory = opened(file)
    assert descriptors() == before + 1
    del memory
    assert descriptors() <= before  # an earlier test may have left one that is closed meanwhile


def test_a_file_cut_short_is_an_error_of_the_read(file: Path) -> None:
    memory = opened(file, 0, 2 * PAGE)
    os.truncate(file, 100)
    assert read(memory, 0, 100) == bytes(range(100))
    with pytest.raises(InvalidRequest, match=r"region 'r' is shorter than when it was registered"):
        read(memory, 99, 2)


def test_a_write_does_not_make_a_file_grow_that_was_cut_short(file: Path) -> None:
    memory = opened(file)
    os.truncate(file, 10)
    with pytest.raises(InvalidRequest, match=r"region 'r' is shorter than when it was registered"):
        memory.write(8, b"abcd")
    assert file.stat().st_size == 10


def test_a_file_that_was_removed_still_serves_who_has_it(file: Path) -> None:
    memory = opened(file)
    file.unlink()
    memory.write(0, b"still")
    assert read(memory, 0, 5) == b"still"


def test_what_the_system_refuses_to_read_is_an_error_of_the_request(file: Path) -> None:
    memory = opened(file)
    directory = os.open("/dev/shm", os.O_RDONLY)
    os.dup2(directory, memory._fd)
    os.close(directory)
    with pytest.raises(InvalidRequest, match=r"region 'r' can not be read: Is a directory"):
        read(memory, 0, 4)


def test_what_the_system_refuses_to_write_is_an_error_of_the_request(file: Path) -> None:
    memory = opened(file)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))
    try:
        with pytest.raises(InvalidRequest, match=r"region 'r' can not be written: File too large"):
            memory.write(32, b"abcd")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_the_number_of_regions_leaves_descriptors_for_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {1024: 256, 2: 1, 1 << 20: 4096, resource.RLIM_INFINITY: 4096}
    for soft, expected in limits.items():
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert region_limit() == expected
