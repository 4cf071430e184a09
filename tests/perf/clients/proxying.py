"""A real HTTP proxy, tinyproxy of Debian, with and without a password."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

STARTUP_S = 10.0


@dataclass(frozen=True, slots=True)
class RunningProxy:
    """A running proxy, and the file in which it logs the requests that it forwards."""

    address: str
    log: Path

    def forwarded(self) -> list[str]:
        """The request lines that the proxy read."""
        lines = self.log.read_text("utf-8", "replace").splitlines()
        return [line.split("): ", 1)[1] for line in lines if "Request (file descriptor" in line]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def listening(command: Sequence[str], port: int) -> Iterator[None]:
    """Run a program while it is used, from when it listens on a port of this machine."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + STARTUP_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.01)
        yield
    finally:
        process.terminate()
        process.wait(10)


@contextmanager
def proxying(directory: Path, credentials: str = "") -> Iterator[RunningProxy]:
    """Run tinyproxy; `credentials` are USER PASSWORD that it asks for."""
    binary = shutil.which("tinyproxy")
    if binary is None:
        pytest.skip("tinyproxy is not installed: apt-get install tinyproxy")
    directory.mkdir()
    port, log, config = free_port(), directory / "log", directory / "tinyproxy.conf"
    config.write_text(
        f'Port {port}\nListen 127.0.0.1\nTimeout 60\nLogFile "{log}"\nLogLevel Connect\nMaxClients 100\n'
        + (f"BasicAuth {credentials}\n" if credentials else "")
    )
    with listening([binary, "-d", "-c", str(config)], port):
        yield RunningProxy(f"127.0.0.1:{port}", log)
