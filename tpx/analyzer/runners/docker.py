"""Servers in containers, through the `docker` command."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tpx.analyzer.runners.control_http import HttpModelControl
from tpx.analyzer.runners.hosts import STOP_TIMEOUT_S, Addresses, Flags, Launch
from tpx.analyzer.runners.local import LOCALHOST, free_port, words_of
from tpx.analyzer.runners.server import ServerProcess
from tpx.errors import UsageError

COMMAND_TIMEOUT_S = 30.0
SERVER = "tritonserver"
_PORTS = ("http-port", "grpc-port", "metrics-port")

RENAMED: Mapping[str, str] = {
    "mem_limit": "memory",
    "mem_reservation": "memory-reservation",
    "mem_swappiness": "memory-swappiness",
    "memswap_limit": "memory-swap",
    "nano_cpus": "cpus",
    "network_mode": "network",
    "ipc_mode": "ipc",
    "pid_mode": "pid",
    "userns_mode": "userns",
    "working_dir": "workdir",
    "volumes": "volume",
    "environment": "env",
    "devices": "device",
    "dns_opt": "dns-option",
    "extra_hosts": "add-host",
    "volumes_from": "volumes-from",
}
"""Names of Docker's Python package, which Model Analyzer has, -> options of the command."""

DECIDED = frozenset(
    {"image", "command", "name", "detach", "remove", "auto_remove", "ports", "stdout", "stderr"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """What every container of a run is made with."""

    image: str
    models: Path
    """The model repository, mounted for reading under the path that it has here."""
    mounts: tuple[str, ...] = ()
    """HOST:DEST:MODE."""
    labels: Mapping[str, str] = field(default_factory=dict)
    shm_size: str = ""
    gpus: Sequence[str] | None = ()
    """None is all."""
    metrics_interval_ms: int = 1000


class DockerHost:
    """Implements Host: each server is a container; its foreground `docker run` is a child of this process."""

    restarts = True

    def __init__(self, container: Container, log: Path | None = None) -> None:
        """Raises UsageError where there is no docker command, or no daemon that it can reach."""
        self._container = container
        self._docker = find_docker()
        self._scratch = Path(tempfile.mkdtemp(prefix="tpx-analyze-"))
        self._log = log or self._scratch / "server.log"

    async def start(self, launch: Launch, timeout_s: float) -> "ContainedServer":
        name = f"tpx-analyze-{uuid.uuid4().hex[:12]}"
        ports = tuple(free_port() for _ in _PORTS)
        addresses = Addresses(
            http=f"{LOCALHOST}:{ports[0]}",
            grpc=f"{LOCALHOST}:{ports[1]}",
            metrics_url=f"http://{LOCALHOST}:{ports[2]}/metrics",
        )
        command = (self._docker, *run_words(self._container, launch, name, ports))
        process = await ServerProcess.start(command, self._log, None, addresses)
        server = ContainedServer(self._docker, name, process)
        try:
            await process.wait_ready(lambda where: HttpModelControl(where.http).live(), timeout_s)
            await server.find_pid()
        except BaseException:
            await server.stop()
            raise
        return server

    def close(self) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)


class ContainedServer:
    """Implements Running for a server in a container."""

    def __init__(self, docker: str, name: str, process: ServerProcess) -> None:
        self._docker = docker
        self._name = name
        self._process = process
        self.pid: int | None = None

    @property
    def addresses(self) -> Addresses:
        return self._process.addresses

    def log_tail(self) -> tuple[str, ...]:
        return self._process.log_tail()

    async def died(self) -> str:
        return await self._process.died()

    async def stop(self, patience_s: float = STOP_TIMEOUT_S) -> None:
        """SIGTERM goes through `docker run` to the server; a container that stays is removed by force."""
        await self._process.stop(patience_s)
        await _ask(self._docker, "rm", "--force", self._name)

    async def find_pid(self) -> None:
        """Learn the server's process, where the daemon's processes are this machine's."""
        if sys.platform != "linux" or not os.environ.get("DOCKER_HOST", "unix://").startswith("unix://"):
            return
        words = await _ask(self._docker, "inspect", "--format", "{{.State.Pid}}", self._name)
        if words.isdecimal() and int(words):
            self.pid = int(words)


def run_words(container: Container, launch: Launch, name: str, ports: tuple[int, ...]) -> Iterator[str]:
    """The words of `docker run` and of the server in it. Raises UsageError for arguments it cannot have."""
    yield from ("run", "--rm", "--name", name)
    for key, value in {"tpx.analyze": name, **container.labels}.items():
        yield from ("--label", f"{key}={value}")
    arguments = dict(launch.docker_args)
    if arguments.get("network_mode") != "host":
        for port in ports:
            yield from ("--publish", f"{LOCALHOST}:{port}:{port}")
    yield from ("--volume", f"{container.models}:{container.models}:ro")
    for mount in container.mounts:
        yield from ("--volume", mount)
    if container.gpus is None or container.gpus:
        # the quotes are docker's: without them a comma begins another key
        yield from ("--gpus", "all" if container.gpus is None else f'"device={",".join(container.gpus)}"')
    if container.shm_size:
        yield from ("--shm-size", container.shm_size)
    for key, value in launch.environment.items():
        yield from ("--env", f"{key}={value}")
    yield from _argument_words(arguments)
    yield from (container.image, SERVER)
    yield from words_of(_server_flags(container, launch, ports))


def find_docker() -> str:
    """The docker command. Raises UsageError where it is missing or has no daemon."""
    docker = shutil.which("docker")
    if docker is None:
        raise UsageError(
            "--triton-launch-mode docker needs the docker command, which is not on the PATH: install it, or "
            "start the container yourself and use --triton-launch-mode remote"
        )
    try:
        found = subprocess.run(
            (docker, "version", "--format", "{{.Server.Version}}"),
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise UsageError(f"--triton-launch-mode docker: {docker} does not answer: {exc}") from exc
    if found.returncode:
        words = " ".join(found.stderr.split()) or f"{docker} version ended with {found.returncode}"
        raise UsageError(f"--triton-launch-mode docker: {words}")
    return docker


def _server_flags(container: Container, launch: Launch, ports: tuple[int, ...]) -> Flags:
    told = {name.replace("_", "-"): values for name, values in launch.flags.items()}
    for name in _PORTS:
        if name in told:
            raise UsageError(
                f"triton_server_flags: {name}: with --triton-launch-mode docker tpx chooses and "
                "publishes the ports; leave it out"
            )
    return {
        "model-repository": (str(container.models),),
        "model-control-mode": ("explicit",),
        "metrics-interval-ms": (str(container.metrics_interval_ms),),
        **{name: (str(port),) for name, port in zip(_PORTS, ports, strict=True)},
        **told,
    }


def _argument_words(arguments: Mapping[str, object]) -> Iterator[str]:
    for name, value in arguments.items():
        if name in DECIDED:
            raise UsageError(f"triton_docker_args: {name} is set by tpx analyze")
        flag = "--" + RENAMED.get(name, name.replace("_", "-"))
        if isinstance(value, bool):
            if value:
                yield flag
        elif name == "nano_cpus":
            yield f"{flag}={int(str(value)) / 1e9:g}"
        else:
            yield from (f"{flag}={item}" for item in (value if isinstance(value, list | tuple) else (value,)))


async def _ask(*command: str) -> str:
    """What a command answers; empty when it fails, which nobody minds here."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(COMMAND_TIMEOUT_S):
            answer, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return ""
    return answer.decode("utf-8", "replace").strip()
