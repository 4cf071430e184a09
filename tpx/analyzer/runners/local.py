"""Servers on this machine: child processes that are started, polled until ready, and reliably stopped."""

import asyncio
import ctypes
import errno
import functools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tpx.analyzer.runners.servers import STOP_TIMEOUT_S, Addresses, Launch, ServerControl
from tpx.errors import MeasurementError, UsageError

if TYPE_CHECKING:
    from tpx.analyzer.values import Flags

LOCALHOST = "127.0.0.1"
PORTS = ("http-port", "grpc-port", "metrics-port")
POLL_S = 0.02
TAIL_LINES = 20

_HTTP = re.compile(r"Started HTTPService at (\S+:\d+)")
_GRPC = re.compile(r"Started GRPCInferenceService at (\S+:\d+)")
_METRICS = re.compile(r"Started Metrics Service at (\S+:\d+)")
_LOGGED_ERROR = re.compile(r"E\d{4} [^\]]*\] (.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalServers:
    """Starts servers on this machine, each a child process over the model repository with no model loaded."""

    models: Path
    program: str = ""
    """Path of a tritonserver; empty for `tpx serve` of this installation."""
    log: Path | None = None
    """Log file of the servers; None uses a temporary file that lasts as long as the server."""
    gpus: Sequence[str] | None = None
    """UUIDs or numbers of the GPUs visible to a server; None is all."""
    metrics_interval_ms: int = 1000

    async def start(self, launch: Launch, timeout_s: float) -> "ChildServer":
        """Start a server and wait for it. Raises MeasurementError if it fails, UsageError for used ports."""
        flags = {name.replace("_", "-"): values for name, values in launch.flags.items()}
        ports = self._choose_ports(flags)
        program = (self.program,) if self.program else (sys.executable, "-m", "tpx", "serve")
        visible = {} if self.gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus)}
        base = defaults(self.models.absolute(), self.metrics_interval_ms, ports)
        if self.program:
            # Triton's default is all interfaces; servers that share a shm prefix break each other's Python
            # models
            prefix = f"python,shm-region-prefix-name=tpx_{os.getpid()}_{ports['http-port']}_"
            addresses = ("http-address", "grpc-address", "metrics-address")
            base |= dict.fromkeys(addresses, (LOCALHOST,)) | {"backend-config": (prefix,)}
        server = await ChildServer.start(
            (*program, *argv_of({**base, **flags})),
            self.log,
            {**visible, **launch.environment},
            addresses_at(ports) if ports["http-port"] and ports["grpc-port"] else None,
        )
        return await server.ready(timeout_s)

    def _choose_ports(self, flags: "Flags") -> dict[str, int]:
        """Return the port of each service: as requested, otherwise a free one; 0 if the server chooses it."""
        # tpx serve chooses free ports itself and logs them, which requires a regular file as the log
        told_in_log = self.log is None or self.log.is_file() or not self.log.exists()
        ports: dict[str, int] = {}
        for name in PORTS:
            values = flags.get(name, ())
            if not values:
                ports[name] = 0 if told_in_log and not self.program else free_port()
                continue
            if not values[-1].isdecimal() or int(values[-1]) > 65535:
                raise UsageError(f"triton_server_flags: {name}: expected a port, got '{values[-1]}'")
            ports[name] = int(values[-1])
            try:
                socket.create_server((LOCALHOST, ports[name])).close()
            except OSError as exc:
                reason = "it is in use" if exc.errno == errno.EADDRINUSE else exc.strerror
                raise UsageError(
                    f"triton_server_flags: {name} {ports[name]}: {reason}. Stop the server that has it, or "
                    "leave the port out to have a free one chosen"
                ) from exc
        return ports


def defaults(models: Path, metrics_interval_ms: int, ports: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """Return the options that every server is started with unless overridden."""
    return {
        "model-repository": (str(models),),
        "model-control-mode": ("explicit",),
        "metrics-interval-ms": (str(metrics_interval_ms),),
        **{name: (str(port),) for name, port in ports.items()},
    }


def addresses_at(ports: Mapping[str, int]) -> Addresses:
    """Return the addresses of a server on this machine, from its ports."""
    http, grpc, metrics = (ports[name] for name in PORTS)
    page = f"http://{LOCALHOST}:{metrics}/metrics" if metrics else ""
    return Addresses(http=f"{LOCALHOST}:{http}", grpc=f"{LOCALHOST}:{grpc}", metrics_url=page)


def find_program(name: str) -> str:
    """Return the path of a program. Raises UsageError if it is not found."""
    found = shutil.which(name)
    if found is None:
        raise UsageError(
            f"--triton-server-path {name}: no such program on the PATH; leave it out to measure `tpx serve`"
        )
    return found


def argv_of(flags: "Flags") -> Iterator[str]:
    """Yield options as command-line arguments."""
    for name, values in flags.items():
        yield from (f"--{name}={value}" for value in values)


def free_port() -> int:
    """Return a port of this machine that is free at the moment."""
    with socket.create_server((LOCALHOST, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


class ChildServer:
    """Implements ServerProcess for a child process."""

    ours = True

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        log: Path,
        begins: int,
        addresses: Addresses | None,
        cleanup: Callable[[], Awaitable[object]],
    ) -> None:
        """`begins` is the offset of this server's output in the log; addresses of None are read from it."""
        self._process = process
        self._log = log
        self._begins = begins
        self._addresses = addresses
        self._cleanup = cleanup
        self.pid: int | None = process.pid

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        log: Path | None,
        environment: Mapping[str, str] | None = None,
        addresses: Addresses | None = None,
        cleanup: Callable[[], Awaitable[object]] | None = None,
    ) -> "ChildServer":
        """Start a server; its output is appended to `log` or a temporary file, and may tell its ports.

        `cleanup` is awaited when it stops. Raises MeasurementError if program or log cannot be opened.
        """
        async with AsyncExitStack() as stack:
            if log is None:
                scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="tpx-analyze-"))
                log = Path(scratch, "server.log")
            try:
                log.parent.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            except OSError as exc:
                raise MeasurementError(f"cannot write the server's log {log}: {exc.strerror}") from exc
            try:
                begins = os.fstat(descriptor).st_size
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=subprocess.DEVNULL,
                    stdout=descriptor,
                    stderr=descriptor,
                    # unbuffered, because the ports are read from the log
                    env={**_own_environment(), "PYTHONUNBUFFERED": "1", **(environment or {})},
                    # Ctrl-C must reach only the analyzer, which stops the server when it is done
                    start_new_session=True,
                    preexec_fn=end_with_parent(),
                )
            except OSError as exc:
                raise MeasurementError(f"cannot start {' '.join(command)}: {exc.strerror}") from exc
            finally:
                os.close(descriptor)
            if cleanup is not None:
                stack.push_async_callback(cleanup)
            return cls(process, log, begins, addresses, stack.pop_all().aclose)

    @property
    def addresses(self) -> Addresses:
        """Addresses of the server, known once it is ready. Raises MeasurementError before."""
        if self._addresses is None:
            raise MeasurementError("the server has not reported its ports yet")
        return self._addresses

    def log_tail(self) -> tuple[str, ...]:
        try:
            with self._log.open("rb") as file:
                file.seek(self._begins)
                return tuple(line.decode("utf-8", "replace").rstrip() for line in deque(file, TAIL_LINES))
        except OSError:
            return ()

    async def ready(self, timeout_s: float) -> "ChildServer":
        """Return the server once it is live; stop it and raise MeasurementError if it ends or is late."""
        try:
            deadline_ns = time.monotonic_ns() + int(timeout_s * 1e9)
            while time.monotonic_ns() < deadline_ns:
                if self._process.returncode is not None:
                    raise MeasurementError(self._describe_death("before it was ready"))
                found = self._addresses or self._read_addresses()
                if found is not None and await ServerControl(found.http).live():
                    # the log had been read between two lines: once the server answers, it has all ports
                    self._addresses = self._addresses or self._read_addresses()
                    return self
                await asyncio.sleep(POLL_S)
            raise MeasurementError(
                f"the server was not ready after {timeout_s:g} s (--client-max-retries sets the limit)"
            )
        except BaseException:
            await self.stop()
            raise

    async def died(self) -> str:
        await self._process.wait()
        return self._describe_death("while it was measured")

    async def stop(self, patience_s: float = STOP_TIMEOUT_S) -> None:
        if self._process.returncode is None:
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), patience_s)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        await self._cleanup()

    def _describe_death(self, when: str) -> str:
        status = self._process.returncode or 0
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        # the last error in a log of Triton's format, or else the last line if the server exited by itself
        lines = [line.strip() for line in self.log_tail() if line.strip()]
        errors = [found.group(1) for found in map(_LOGGED_ERROR.match, self.log_tail()) if found]
        words = errors[-1] if errors else lines[-1] if lines and status > 0 else ""
        return f"the server {how} {when}: {words}" if words else f"the server {how} {when}"

    def _read_addresses(self) -> Addresses | None:
        with self._log.open("rb") as file:
            file.seek(self._begins)
            text = file.read().decode("utf-8", "replace")
        http, grpc, metrics = (pattern.search(text) for pattern in (_HTTP, _GRPC, _METRICS))
        if http is None or grpc is None:
            return None
        page = f"http://{metrics.group(1)}/metrics" if metrics else ""
        return Addresses(http=http.group(1), grpc=grpc.group(1), metrics_url=page)


def _own_environment() -> dict[str, str]:
    """Return this process' environment without options of `tpx serve`: the command line has them all."""
    return {name: text for name, text in os.environ.items() if not name.startswith("TPX_SERVE_")}


def end_with_parent() -> Callable[[], object] | None:
    """Return a hook that sends the child SIGTERM when its parent dies: no server outlives the analyzer."""
    if sys.platform != "linux":
        return None
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG
    return functools.partial(ctypes.CDLL(None).prctl, set_parent_death_signal, signal.SIGTERM)
