"""`tpx serve` whose words go to a full disk, or to a reader that has gone: it serves on."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.child import environment
from tests.serving.onnx_files import doubling, write_model
from tests.waiting import eventually

pytestmark = pytest.mark.e2e


@pytest.fixture(params=["a full disk", "nobody"])
def unheard(request: pytest.FixtureRequest) -> Iterator[int]:
    """A descriptor that every write to fails."""
    if request.param == "a full disk":
        descriptor = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, descriptor = os.pipe()
        os.close(reader)
    yield descriptor
    os.close(descriptor)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


def status(port: int) -> int:
    """What the server answers when it is there."""
    statuses: list[int] = []

    def answered() -> bool:
        with (
            suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/net/ready", timeout=5) as answer,
        ):
            statuses.append(answer.status)
        return bool(statuses)

    eventually(answered)
    return statuses[0]


def test_nobody_hears_it_and_it_serves_all_the_same(unheard: int, tmp_path: Path) -> None:
    write_model(tmp_path, "net", doubling())
    port = free_port()
    words = ["--model-repository", str(tmp_path), f"--http-port={port}", "--allow-grpc=false"]
    child = subprocess.Popen(
        [sys.executable, "-m", "tpx", "serve", *words, "--allow-metrics=false", "--log-verbose=1"],
        env=environment(),
        stdout=unheard,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert [status(port) for _ in range(3)] == [200, 200, 200]
        child.send_signal(signal.SIGTERM)
        _, told = child.communicate(timeout=20)
    finally:
        child.kill()
    assert child.returncode == 0
    [line] = told.splitlines()
    assert line.startswith("log to <stdout>: [Errno ")
