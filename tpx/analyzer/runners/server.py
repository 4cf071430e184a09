"""A child process that serves: started, watched until it answers, and stopped for certain."""

import asyncio
import ctypes
import functools
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from tpx.analyzer.runners.hosts import STOP_TIMEOUT_S, Addresses
from tpx.errors import MeasurementError

POLL_S = 0.02
TAIL_LINES = 20

_HTTP = re.compile(r"Started HTTPService at (\S+:\d+)")
_GRPC = re.compile(r"Started GRPCInferenceService at (\S+:\d+)")
_METRICS = re.compile(r"Started Metrics Service at (\S+:\d+)")
_LOGGED_ERROR = re.compile(r"E\d{4} [^\]]*\] (.+)")


class ServerProcess:
    """Implements Running for a child of this process."""

    def __init__(
        self, process: asyncio.subprocess.Process, log: Path, begins: int, addresses: Addresses | None
    ) -> None:
        """`begins` is where its own words begin in the log; addresses of None are to be found there."""
        self._process = process
        self._log = log
        self._begins = begins
        self._addresses = addresses

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        addresses: Addresses | None = None,
    ) -> "ServerProcess":
        """Start a server; its output goes to the end of `log`, where it names its ports if nobody knows them.

        Raises MeasurementError where the program or the log is not to be had.
        """
        descriptor = _open(log)
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
                start_new_session=True,  # Ctrl-C is for the analyzer, which stops the server when it is done
                preexec_fn=_end_with_parent(),
            )
            return cls(process, log, os.fstat(descriptor).st_size, addresses)
        except OSError as exc:
            raise MeasurementError(f"cannot start {' '.join(command)}: {exc.strerror}") from exc
        finally:
            os.close(descriptor)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def addresses(self) -> Addresses:
        """Known once the server is ready. Raises MeasurementError before."""
        if self._addresses is None:
            raise MeasurementError("the server has not told its ports yet")
        return self._addresses

    def log_tail(self) -> tuple[str, ...]:
        try:
            with self._log.open("rb") as file:
                file.seek(self._begins)
                return tuple(line.decode("utf-8", "replace").rstrip() for line in deque(file, TAIL_LINES))
        except OSError:
            return ()

    async def wait_ready(self, live: Callable[[Addresses], Awaitable[bool]], timeout_s: float) -> None:
        """Until the server answers, as `live` finds out.

        Raises MeasurementError when it ends before, or takes longer than `timeout_s`.
        """
        deadline_ns = time.monotonic_ns() + int(timeout_s * 1e9)
        while time.monotonic_ns() < deadline_ns:
            if self._process.returncode is not None:
                raise MeasurementError(self._death("before it was ready"))
            self._addresses = self._addresses or self._told_addresses()
            if self._addresses is not None and await live(self._addresses):
                return
            await asyncio.sleep(POLL_S)
        raise MeasurementError(
            f"the server was not ready after {timeout_s:g} s (--client-max-retries sets the limit)"
        )

    async def died(self) -> str:
        await self._process.wait()
        return self._death("while it was measured")

    async def stop(self, patience_s: float = STOP_TIMEOUT_S) -> None:
        if self._process.returncode is None:
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), patience_s)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()

    def _death(self, when: str) -> str:
        status = self._process.returncode or 0
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        words = _last_words(self.log_tail(), any_line=status > 0)
        return f"the server {how} {when}: {words}" if words else f"the server {how} {when}"

    def _told_addresses(self) -> Addresses | None:
        with self._log.open("rb") as file:
            file.seek(self._begins)
            text = file.read().decode("utf-8", "replace")
        http, grpc, metrics = (pattern.search(text) for pattern in (_HTTP, _GRPC, _METRICS))
        if http is None or grpc is None:
            return None
        page = f"http://{metrics.group(1)}/metrics" if metrics else ""
        return Addresses(http=http.group(1), grpc=grpc.group(1), metrics_url=page)


def _last_words(tail: Sequence[str], *, any_line: bool) -> str:
    """The last error of a log in Triton's format; failing that its last line, if that may be any."""
    errors = [found.group(1) for found in map(_LOGGED_ERROR.match, tail) if found]
    lines = [line.strip() for line in tail if line.strip()]
    return errors[-1] if errors else lines[-1] if lines and any_line else ""


def _end_with_parent() -> Callable[[], object] | None:
    """What a child calls before it becomes the server, so that no server outlives a killed analyzer."""
    if sys.platform != "linux":
        return None
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG
    return functools.partial(ctypes.CDLL(None).prctl, set_parent_death_signal, signal.SIGTERM)


def _open(log: Path) -> int:
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as exc:
        raise MeasurementError(f"cannot write the server's log {log}: {exc.strerror}") from exc
