"""A child server: started on free ports, watched until its model is ready, stopped for certain."""

import asyncio
import ctypes
import functools
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tpx.errors import MeasurementError

POLL_S = 0.02
STOP_TIMEOUT_S = 10.0
REQUEST_TIMEOUT_S = 5.0
TAIL_LINES = 20

_STARTED = {
    "http": re.compile(r"Started HTTPService at (\S+:\d+)"),
    "grpc": re.compile(r"Started GRPCInferenceService at (\S+:\d+)"),
}
_LOGGED_ERROR = re.compile(r"E\d{4} [^\]]*\] (.+)")


class ServerProcess:
    """One child server that speaks the v2 protocol."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log
        self._addresses: dict[str, str] = {}

    @classmethod
    async def start(cls, command: Sequence[str], log: Path) -> "ServerProcess":
        """Start a server; its output goes to `log`, where it must name the ports that it listens on."""
        descriptor = _create(log)
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,  # Ctrl-C is for the analyzer, which stops the server when it is done
                preexec_fn=_end_with_parent(),
            )
        except OSError as exc:
            raise MeasurementError(f"cannot start {' '.join(command)}: {exc.strerror}") from exc
        finally:
            os.close(descriptor)
        return cls(process, log)

    @property
    def pid(self) -> int:
        return self._process.pid

    def address(self, protocol: str) -> str:
        """host:port of `http` or `grpc`, known once the server is ready."""
        return self._addresses[protocol]

    def log_tail(self) -> tuple[str, ...]:
        try:
            with self._log.open(encoding="utf-8", errors="replace") as file:
                return tuple(line.rstrip() for line in deque(file, TAIL_LINES))
        except OSError:
            return ()

    async def wait_ready(self, model: str | None, timeout_s: float) -> None:
        """Until the server, and its model if one is named, answer that they are ready.

        Raises MeasurementError when the server ends, refuses the model, or takes longer than `timeout_s`.
        """
        deadline_ns = time.monotonic_ns() + int(timeout_s * 1e9)
        while time.monotonic_ns() < deadline_ns:
            if self._process.returncode is not None:
                raise MeasurementError(self._death("before it was ready"))
            if self._find_addresses() and await self._is_ready(model):
                return
            await asyncio.sleep(POLL_S)
        what = f"model '{model}'" if model else "the server"
        raise MeasurementError(
            f"{what} was not ready after {timeout_s:g} s (--client-max-retries sets the limit)"
        )

    async def died(self) -> str:
        """Returns when the process has ended, with what there is to say about it."""
        await self._process.wait()
        return self._death("while it was measured")

    async def config_of(self, model: str) -> dict[str, Any]:
        """JSON of the model's configuration as the server completed it."""
        try:
            status, body = await asyncio.to_thread(self._request, "GET", f"/v2/models/{model}/config")
        except (OSError, http.client.HTTPException) as exc:
            raise MeasurementError(f"the server did not tell the configuration of '{model}': {exc}") from exc
        if status != 200 or not isinstance(body, dict):
            raise MeasurementError(
                f"the server answered {status} when asked for the configuration of '{model}'"
            )
        return body

    async def stop(self) -> None:
        """End the process: SIGTERM, and SIGKILL when that is not enough."""
        if self._process.returncode is None:
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), STOP_TIMEOUT_S)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()

    def _death(self, when: str) -> str:
        status = self._process.returncode or 0
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        words = _last_words(self.log_tail(), any_line=status > 0)
        return f"the server {how} {when}: {words}" if words else f"the server {how} {when}"

    def _find_addresses(self) -> bool:
        if len(self._addresses) < len(_STARTED):
            text = self._log.read_text(encoding="utf-8", errors="replace")
            for protocol, pattern in _STARTED.items():
                found = pattern.search(text)
                if found:
                    self._addresses[protocol] = found.group(1)
        return len(self._addresses) == len(_STARTED)

    async def _is_ready(self, model: str | None) -> bool:
        path = f"/v2/models/{model}/ready" if model else "/v2/health/live"
        try:
            status, _ = await asyncio.to_thread(self._request, "GET", path)
            if status == 200 or model is None:
                return status == 200
            _, index = await asyncio.to_thread(self._request, "POST", "/v2/repository/index")
        except (OSError, http.client.HTTPException):
            return False  # not listening yet, or gone: the next poll of the process tells
        reason = _refusal(index, model)
        if reason:
            raise MeasurementError(f"the server could not load model '{model}': {reason}")
        return False

    def _request(self, method: str, path: str) -> tuple[int, Any]:
        host, _, port = self._addresses["http"].rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=REQUEST_TIMEOUT_S)
        try:
            connection.request(method, path, body=b"{}" if method == "POST" else None)
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        return response.status, _json(body)


def _refusal(index: Any, model: str) -> str:
    """Why the repository index says that this model is not to be had; empty while it may still come."""
    if not isinstance(index, list):
        return ""
    for entry in index:
        if isinstance(entry, dict) and entry.get("name") == model and entry.get("state") == "UNAVAILABLE":
            return str(entry.get("reason") or "it is unavailable")
    return ""


def _last_words(tail: Sequence[str], *, any_line: bool) -> str:
    """The last error of a log in Triton's format; failing that its last line, if that may be any."""
    errors = [found.group(1) for found in map(_LOGGED_ERROR.match, tail) if found]
    lines = [line.strip() for line in tail if line.strip()]
    return errors[-1] if errors else lines[-1] if lines and any_line else ""


def _json(body: bytes) -> Any:
    try:
        return json.loads(body) if body else None
    except ValueError:
        return None


def _end_with_parent() -> Callable[[], object] | None:
    """What a child calls before it becomes the server, so that no server outlives a killed analyzer."""
    if sys.platform != "linux":
        return None
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG
    return functools.partial(ctypes.CDLL(None).prctl, set_parent_death_signal, signal.SIGTERM)


def _create(log: Path) -> int:
    try:
        return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    except OSError as exc:
        raise MeasurementError(f"cannot write {log}: {exc.strerror}") from exc
