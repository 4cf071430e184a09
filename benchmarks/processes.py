"""Child processes: started in the background, measured with all their descendants, ended by their pid."""

import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tpx.errors import MeasurementError

STOP_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory of a process and its descendants in MB (10**6 bytes)."""

    rss_mb: float
    """What is resident, a page that two processes share counted twice."""
    pss_mb: float
    """What is resident, a shared page divided among those who share it."""
    private_mb: float
    """What would be free if the processes ended."""


class Process:
    """One child with its output in a file. A context manager that ends what it started."""

    def __init__(
        self,
        argv: Sequence[str | Path],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.name = Path(argv[0]).name
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            self._child = subprocess.Popen(
                [str(word) for word in argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                cwd=cwd,
            )

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child.poll() is None

    @property
    def output(self) -> str:
        """What it has written until now, both streams together."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def wait(self, timeout_s: float) -> int:
        """Its exit status. Raises MeasurementError, and ends it, when it takes longer."""
        try:
            return self._child.wait(timeout_s)
        except subprocess.TimeoutExpired as exc:
            self.stop()
            raise MeasurementError(f"{self.name} did not end within {timeout_s:.0f} s") from exc

    def cpu_s(self) -> float:
        """User and system time of all living descendants and itself, in seconds; steps of 10 ms."""
        total = 0.0
        for process in self._tree():
            with suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system
        return total

    def memory(self) -> Memory:
        rss = pss = private = 0
        for process in self._tree():
            with suppress(psutil.Error):
                full = process.memory_full_info()
                rss, pss, private = rss + full.rss, pss + full.pss, private + full.uss
        return Memory(rss_mb=rss / 1e6, pss_mb=pss / 1e6, private_mb=private / 1e6)

    def stop(self) -> None:
        """SIGTERM; after STOP_S seconds SIGKILL to it and to every descendant that is still there."""
        if not self.running:
            return
        family = self._tree()
        self._child.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(STOP_S)
        for process in family:
            with suppress(psutil.Error):
                process.kill()
        self._child.wait(STOP_S)

    def _tree(self) -> list[psutil.Process]:
        try:
            process = psutil.Process(self.pid)
            return [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


def free_port() -> int:
    """A port of 127.0.0.1 that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def last_lines(text: str, count: int = 5) -> str:
    """The end of a log, for an error's message."""
    lines = [line for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-count:]) or "(no output)"
