"""`tpx.serve`: a server in this process or in a separate one."""

import asyncio
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from tpx.errors import LoadError, UsageError
from tpx.options import from_mapping
from tpx.perf.loops import event_loop
from tpx.serving.options import ServeConfig
from tpx.serving.server import InferenceServer

START_S = 120.0
STOP_S = 60.0
POLL_S = 0.05
_FREE_PORTS = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}


def serve(
    models: str | Path | Sequence[str | Path], *, process: bool = False, **options: object
) -> "RunningServer":
    """Start a server on model repositories and return it once it is ready; leaving `with` stops it.

    `options` are those of `tpx serve`, with underscores; ports that are not given are free ones. With
    `process=True` the server runs in a separate process, as it should for measurements: in this process
    it shares Python's interpreter lock with the caller. Raises LoadError if the server does not start.
    """
    paths = [models] if isinstance(models, str | Path) else list(models)
    given = {**_FREE_PORTS, **options, "model_repository": [str(path) for path in paths]}
    running = _ProcessServer(given) if process else _ThreadServer(given)
    try:
        return RunningServer(running, running.start())
    except BaseException:
        running.stop()
        raise


class RunningServer:
    """A running server; a context manager that stops it."""

    def __init__(self, running: "_ThreadServer | _ProcessServer", addresses: Mapping[str, str]) -> None:
        self._running = running
        self._addresses = addresses

    @property
    def http(self) -> str:
        """Return host:port of the HTTP endpoint. Raises UsageError if it is disabled."""
        return self._find_address("HTTPService")

    @property
    def grpc(self) -> str:
        """Return host:port of the gRPC endpoint. Raises UsageError if it is disabled."""
        return self._find_address("GRPCInferenceService")

    @property
    def metrics(self) -> str:
        """Return host:port of the metrics page. Raises UsageError if it is disabled."""
        return self._find_address("Metrics Service")

    def client(self, protocol: Literal["http", "grpc"] = "grpc") -> Any:
        """Return a tritonclient, which the caller closes. Raises UsageError if it is not installed."""
        try:
            if protocol == "grpc":
                from tritonclient.grpc import InferenceServerClient
            else:
                from tritonclient.http import InferenceServerClient
        except ImportError as exc:
            raise UsageError(f"client() needs tritonclient: pip install 'tritonclient[{protocol}]'") from exc
        return InferenceServerClient(self.grpc if protocol == "grpc" else self.http)

    def stop(self) -> None:
        """Stop accepting requests, finish those in flight, and end."""
        self._running.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<tpx server: {', '.join(f'{name} {where}' for name, where in self._addresses.items())}>"

    def _find_address(self, service: str) -> str:
        if service not in self._addresses:
            raise UsageError(f"this server has no {service} (has: {', '.join(self._addresses)})")
        return self._addresses[service]


class _ThreadServer:
    """A server on an event loop in a thread of this process."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._config = from_mapping(ServeConfig, options, source="tpx.serve")
        self._ready = threading.Event()
        self._addresses: dict[str, str] = {}
        self._failure: BaseException | None = None
        self._ending: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._thread = threading.Thread(target=self._run, name="tpx-server", daemon=True)

    def start(self) -> Mapping[str, str]:
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure
        return self._addresses

    def stop(self) -> None:
        if self._ending is not None and self._thread.is_alive():
            loop, ending = self._ending
            loop.call_soon_threadsafe(ending.set)
            self._thread.join(STOP_S)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=event_loop) as runner:
                runner.run(self._serve())
        except BaseException as exc:  # noqa: BLE001 (raised again in the caller's thread)
            self._failure = exc
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        ending = asyncio.Event()
        self._ending = asyncio.get_running_loop(), ending
        server = InferenceServer(self._config)
        endpoints = await server.start()
        self._addresses = {endpoint.service: endpoint.where for endpoint in endpoints}
        self._ready.set()
        await ending.wait()
        await server.stop()


class _ProcessServer:
    """`tpx serve` in a separate process, with its log in a file."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        from_mapping(ServeConfig, options, source="tpx.serve")  # raises UsageError here, not in the process
        self._words = [word for name, value in options.items() for word in _format_option(name, value)]
        self._log = Path(tempfile.mkstemp(prefix="tpx-serve-", suffix=".log")[1])
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Mapping[str, str]:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tpx", "serve", *self._words], stdout=log, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + START_S
        while "is ready" not in self._read_log() and self._process.poll() is None:
            if time.monotonic() > deadline:
                raise LoadError(f"the server is not ready after {START_S:g} s; its log: {self._log}")
            time.sleep(POLL_S)
        if self._process.poll() is not None:
            raise LoadError(f"the server did not start:\n{self._read_log().strip()[-2000:]}")
        return dict(re.findall(r"Started (\w[\w ]*) at (\S+:\d+)", self._read_log()))

    def stop(self) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.unlink(missing_ok=True)

    def _read_log(self) -> str:
        return self._log.read_text("utf-8", errors="replace")


def _format_option(name: str, value: object) -> list[str]:
    """Return an option as command-line arguments, one per element of a list."""
    flag = f"--{name.replace('_', '-')}"
    values = value if isinstance(value, list | tuple) else [value]
    return [f"{flag}={str(each).lower() if isinstance(each, bool) else each}" for each in values]


T = TypeVar("T")
JOIN_S = 0.2
"""Interval between checks for Ctrl-C, which only the main thread receives."""


def run_in_thread(work: Callable[[asyncio.Event], Coroutine[object, object, T]]) -> T:
    """Run `work` on an event loop in a new thread; its event is set by Ctrl-C, after which it should end."""
    results: list[T] = []
    failures: list[BaseException] = []
    started: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def carried_out() -> T:
        stop = asyncio.Event()
        started.append((asyncio.get_running_loop(), stop))
        return await work(stop)

    def body() -> None:
        try:
            with asyncio.Runner(loop_factory=event_loop) as runner:
                results.append(runner.run(carried_out()))
        except BaseException as exc:  # noqa: BLE001 (raised again in the caller's thread)
            failures.append(exc)

    thread = threading.Thread(target=body, name="tpx", daemon=True)
    thread.start()
    while thread.is_alive():
        try:
            thread.join(JOIN_S)
        except KeyboardInterrupt:
            for loop, stop in started:
                loop.call_soon_threadsafe(stop.set)
    if failures:
        raise failures[0]
    return results[0]
