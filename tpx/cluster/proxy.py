"""One HAProxy on a node: started with the current routes, reconfigured at run time, restarted when it
dies.
"""

import asyncio
import contextlib
import errno
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tpx.analyzer.runners.local import end_with_parent
from tpx.cluster.balancer import ReplicaRoute, Slots, changes, haproxy_config
from tpx.cluster.policy import Backoff
from tpx.cluster.spec import from_plain
from tpx.errors import UsageError
from tpx.protocol.json_values import JsonObject

SPARE_SLOTS = 4
"""Slots beyond twice the maximum number of replicas: an update runs a new replica beside the old ones."""
SOCKET_TIMEOUT_S = 2.0


class Proxy:
    """Keeps one HAProxy running. Runs as an actor on the node whose address clients use."""

    def __init__(self, plain: JsonObject) -> None:
        self._spec = from_plain(plain)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._slots = Slots.empty(2 * self._spec.replica.bounds[1] + SPARE_SLOTS)
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._backoff = Backoff()
        self._restarts = 0
        self._message = ""

    async def start(self) -> str:
        """Start HAProxy. Return an error, or an empty string."""
        if self._keeper is not None:
            return ""
        try:
            self._check_prerequisites()
            self._folder = tempfile.TemporaryDirectory(prefix="tpx-haproxy-")
        except UsageError as exc:
            self._message = exc.message
            return exc.message
        except OSError as exc:  # from its temporary directory
            self._message = f"HAProxy's directory cannot be made: {exc}"
            return self._message
        started = asyncio.get_running_loop().create_future()
        self._keeper = asyncio.create_task(self._run_forever(started))
        return str(await started)

    async def route(self, routes: Sequence[ReplicaRoute]) -> str:
        """Route traffic to these replicas from now on. Return an error, or an empty string."""
        new = self._slots.placed(routes)
        if self._keeper is None or (new == self._slots and not self._message):
            return self._message
        try:
            for command in changes(self._slots, new):
                await asyncio.to_thread(self._send_command, command)
        except OSError as exc:  # HAProxy is restarting; it will start with the new slots
            self._message = f"haproxy: {exc}"
        else:
            self._message = ""
        self._slots = new
        return self._message

    async def status(self) -> dict[str, object]:
        """Return its process, number of restarts, and last message."""
        alive = self._process is not None and self._process.returncode is None
        pid = self._process.pid if self._process and alive else 0
        return {"running": alive, "pid": pid, "restarts": self._restarts, "message": self._message}

    async def stop(self) -> None:
        """Stop HAProxy once its requests in flight are answered, but after two seconds at the latest."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(10)  # SIGUSR1: soft stop
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 2)
            if process.returncode is None:
                process.kill()
                await process.wait()
        if self._folder is not None:
            self._folder.cleanup()

    def _check_prerequisites(self) -> None:
        """Raise UsageError if the program is missing or a port is in use."""
        traffic = self._spec.traffic
        if shutil.which(traffic.haproxy) is None:
            raise UsageError(
                f"no program '{traffic.haproxy}' on this node: install haproxy, or name it by --haproxy"
            )
        for name in ("http", "grpc", "stats"):
            address, port = getattr(traffic, f"{name}_address"), getattr(traffic, f"{name}_port")
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            try:
                socket.create_server((address, port), family=family).close()
            except OSError as exc:
                flag, value = ("address", address) if exc.errno == errno.EADDRNOTAVAIL else ("port", port)
                raise UsageError(f"--{name}-{flag} {value}: {exc.strerror}") from exc

    async def _run_forever(self, started: "asyncio.Future[str]") -> None:
        while True:
            began_s = time.monotonic()
            try:
                await self._run(started)
            except OSError as exc:  # disk full or process limit of the node: may be temporary, so retry
                self._message = f"HAProxy cannot be started: {exc}"
                if not started.done():
                    started.set_result(self._message)
            self._restarts += 1
            await asyncio.sleep(self._backoff.after_death(time.monotonic() - began_s))

    async def _run(self, started: "asyncio.Future[str]") -> None:
        """Run one HAProxy until it exits. Raises OSError if it cannot be started."""
        config = Path(self._directory, "haproxy.cfg")
        text = haproxy_config(self._spec.traffic, self._slots, self._socket)
        await asyncio.to_thread(config.write_text, text, encoding="utf-8")
        self._process = await asyncio.create_subprocess_exec(
            *(self._spec.traffic.haproxy, "-db", "-f", str(config)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=end_with_parent(),
        )
        words = asyncio.create_task(_read_last_line(self._process))
        if not started.done():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._process.wait()), 0.5)
            started.set_result(await words if self._process.returncode is not None else "")
        await self._process.wait()
        self._message = await words

    @property
    def _directory(self) -> str:
        return self._folder.name if self._folder else ""

    @property
    def _socket(self) -> str:
        return str(Path(self._directory, "socket"))

    def _send_command(self, command: str) -> None:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(SOCKET_TIMEOUT_S)
            peer.connect(self._socket)
            peer.sendall(command.encode() + b"\n")
            answer = peer.recv(4096).decode("utf-8", "replace").strip()
        if answer and not answer.startswith(("IP changed", "no need", "port changed", "nothing changed")):
            raise OSError(f"{command}: {answer}")


async def _read_last_line(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    last = b""
    async for line in process.stderr:
        last = line.strip() or last
    return last.decode("utf-8", "replace")
