"""A file in shared memory, and a region of it that the server of all frontends' tests knows."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.serving.frontends.shared_memory.requests import SYSTEM, register
from tests.serving.live import Live
from tests.serving.shared_memory.segments import segment


@pytest.fixture
def file(live: Live) -> Iterator[Path]:
    """Two pages that begin with the numbers 0 to 15; whatever was registered is unregistered afterwards."""
    with segment(8192, np.arange(16, dtype=np.float32).tobytes()) as path:
        yield path
    assert live.http("POST", SYSTEM + "/unregister").status == 200


@pytest.fixture
def region(live: Live, file: Path) -> Path:
    """The first 64 bytes of the file are registered as "r"."""
    assert register(live, "r", key=f"/{file.name}").status == 200
    return file
