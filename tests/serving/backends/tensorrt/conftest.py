"""A fake driver of a machine with two GPUs, of which every test has its own, and engines on it."""

import ctypes
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.backends.tensorrt.opened import Opened, X, Y
from tests.serving.shared_memory.fake_driver import compiled_driver


class Driver:
    """What the test sees of it."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.functions = ctypes.CDLL(self.path)

    def left(self) -> tuple[int, int, int]:
        """Allocations, streams, and contexts that are pushed."""
        functions = self.functions
        return functions.fake_allocations(), functions.fake_streams(), functions.fake_depth()


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled_driver(tmp_path_factory.mktemp("cuda"), Path(__file__).with_name("fake_libcuda.c"))


@pytest.fixture
def driver(compiled: Path, tmp_path: Path) -> Iterator[Driver]:
    """A library of its own for each test: one that is loaded stays as it is."""
    yield (made := Driver(Path(shutil.copy(compiled, tmp_path / "libcuda.so"))))
    assert made.left() == (0, 0, 0)


@pytest.fixture
def opened(driver: Driver, tmp_path: Path) -> Iterator[Opened]:
    made = Opened(driver.path, tmp_path)
    made.write([X, Y])
    yield made
    made.close()
