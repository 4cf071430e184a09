"""Servers on this machine: a child `tpx serve`, or a tritonserver."""

import errno
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tpx.analyzer.runners.control_http import HttpModelControl
from tpx.analyzer.runners.hosts import Addresses, Flags, Launch
from tpx.analyzer.runners.server import ServerProcess
from tpx.errors import UsageError

LOCALHOST = "127.0.0.1"
_PORTS = ("http-port", "grpc-port", "metrics-port")


class LocalHost:
    """Implements Host: each server is a child process over the model repository, with nothing loaded."""

    restarts = True

    def __init__(
        self,
        model_repository: Path,
        *,
        program: str = "",
        log: Path | None = None,
        gpus: Sequence[str] | None = None,
        metrics_interval_ms: int = 1000,
    ) -> None:
        """`program` is a tritonserver by name or path, empty is `tpx serve` of this installation.

        Without a `log` what servers say is kept while they run. Raises UsageError where there is no program.
        """
        self._models = model_repository.absolute()
        self._program = program and find_program(program)
        self._scratch = Path(tempfile.mkdtemp(prefix="tpx-analyze-"))
        self._log = log or self._scratch / "server.log"
        # tpx serve takes free ports itself and tells them in its log, where there is one to read
        self._finds_ports = not program and (self._log.is_file() or not self._log.exists())
        self._gpus = gpus
        self._metrics_interval_ms = metrics_interval_ms

    async def start(self, launch: Launch, timeout_s: float) -> ServerProcess:
        flags = {name.replace("_", "-"): values for name, values in launch.flags.items()}
        ports = self._ports(flags)
        command = (*self._words(), *words_of({**self._defaults(ports), **flags}))
        server = await ServerProcess.start(command, self._log, self._environment(launch), _addresses(ports))
        try:
            await server.wait_ready(lambda where: HttpModelControl(where.http).live(), timeout_s)
        except BaseException:
            await server.stop()
            raise
        return server

    def close(self) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _words(self) -> tuple[str, ...]:
        return (self._program,) if self._program else (sys.executable, "-m", "tpx", "serve")

    def _environment(self, launch: Launch) -> Mapping[str, str]:
        visible = {} if self._gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(self._gpus)}
        return {**visible, **launch.environment}

    def _ports(self, flags: Flags) -> dict[str, int]:
        """The port of each service: as told, otherwise a free one; 0 where the server finds it itself."""
        ports: dict[str, int] = {}
        for name in _PORTS:
            told = flags.get(name, ())
            if not told:
                ports[name] = 0 if self._finds_ports else free_port()
                continue
            if not told[-1].isdecimal() or int(told[-1]) > 65535:
                raise UsageError(f"triton_server_flags: {name}: expected a port, got '{told[-1]}'")
            ports[name] = int(told[-1])
            _refuse_used(ports[name], name)
        return ports

    def _defaults(self, ports: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
        said = {name: (str(port),) for name, port in ports.items()}
        base: dict[str, tuple[str, ...]] = {
            "model-repository": (str(self._models),),
            "model-control-mode": ("explicit",),
            "metrics-interval-ms": (str(self._metrics_interval_ms),),
            **said,
        }
        if not self._program:
            return base
        # Triton listens everywhere unless told; two of them with one prefix end each other's Python models
        prefix = f"python,shm-region-prefix-name=tpx_{os.getpid()}_{ports['http-port']}_"
        address = (LOCALHOST,)
        return base | {
            "http-address": address,
            "grpc-address": address,
            "metrics-address": address,
            "backend-config": (prefix,),
        }


def find_program(name: str) -> str:
    """The path of a program. Raises UsageError where there is none of this name."""
    found = shutil.which(name)
    if found is None:
        raise UsageError(
            f"--triton-server-path {name}: no such program on the PATH; leave it out to measure `tpx serve`"
        )
    return found


def words_of(flags: Flags) -> Iterator[str]:
    """Options as words of a command line."""
    for name, values in flags.items():
        yield from (f"--{name}={value}" for value in values)


def free_port() -> int:
    """A port of this machine that nobody listens on at this moment."""
    with socket.create_server((LOCALHOST, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _addresses(ports: Mapping[str, int]) -> Addresses | None:
    http, grpc, metrics = (ports[name] for name in _PORTS)
    if not (http and grpc):
        return None
    page = f"http://{LOCALHOST}:{metrics}/metrics" if metrics else ""
    return Addresses(http=f"{LOCALHOST}:{http}", grpc=f"{LOCALHOST}:{grpc}", metrics_url=page)


def _refuse_used(port: int, name: str) -> None:
    if not port:
        return
    try:
        socket.create_server((LOCALHOST, port)).close()
    except OSError as exc:
        reason = "it is in use" if exc.errno == errno.EADDRINUSE else exc.strerror
        raise UsageError(
            f"triton_server_flags: {name} {port}: {reason}. Stop the server that has it, or leave the port "
            "out to have a free one chosen"
        ) from exc
