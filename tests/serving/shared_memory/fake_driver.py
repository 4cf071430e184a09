"""A CUDA driver whose devices are plain memory, compiled where a test needs one."""

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("fake_libcuda.c")


def compiled_driver(directory: Path, source: Path = SOURCE) -> Path:
    """The library, made in `directory`; without a compiler the test is skipped."""
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("gcc not found: install the Debian package gcc")
    path = directory / "libcuda.so"
    subprocess.run([gcc, "-shared", "-fPIC", "-Wall", "-Werror", "-o", path, source], check=True, timeout=50)
    return path
