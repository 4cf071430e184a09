"""A CUDA driver whose devices are plain memory, compiled where a test needs one."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

SIZE = 4096
SOURCE = Path(__file__).with_name("fake_libcuda.c")


def compiled_driver(directory: Path, source: Path = SOURCE) -> Path:
    """The library, made in `directory`; without a compiler the test is skipped."""
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("gcc not found: install the Debian package gcc")
    path = directory / "libcuda.so"
    subprocess.run([gcc, "-shared", "-fPIC", "-Wall", "-Werror", "-o", path, source], check=True, timeout=50)
    return path


class Device:
    """The other process: it allocates memory, exports it, and looks into it."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.driver = ctypes.CDLL(self.path)
        self.driver.fake_allocate.restype = ctypes.c_uint64

    def allocate(self, device: int = 0, size: int = SIZE) -> int:
        address = self.driver.fake_allocate(device, ctypes.c_size_t(size))
        assert isinstance(address, int)
        return address

    def export(self, address: int) -> bytes:
        handle = ctypes.create_string_buffer(64)
        self.driver.fake_export(ctypes.c_uint64(address), handle)
        return handle.raw

    @property
    def opened(self) -> int:
        return int(self.driver.fake_opened())

    @property
    def depth(self) -> int:
        """How many contexts are pushed."""
        return int(self.driver.fake_depth())
