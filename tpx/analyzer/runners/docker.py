"""Servers in containers, started with the `docker` command."""

import asyncio
import functools
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tpx.analyzer.runners.local import (
    LOCALHOST,
    PORTS,
    ChildServer,
    addresses_at,
    argv_of,
    defaults,
    free_port,
)
from tpx.analyzer.runners.servers import Launch
from tpx.errors import UsageError

COMMAND_TIMEOUT_S = 30.0
SERVER = "tritonserver"

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
"""Names from Docker's Python package, used by Model Analyzer, -> options of the command."""

DECIDED = frozenset(
    {"image", "command", "name", "detach", "remove", "auto_remove", "ports", "stdout", "stderr"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """Starts servers in containers of the same settings, each a foreground `docker run` child process."""

    docker: str
    """Path of the docker command."""
    image: str
    models: Path
    """Model repository, mounted read-only under its path on the host."""
    mounts: tuple[str, ...] = ()
    """Further mounts, as HOST:DEST:MODE."""
    labels: Mapping[str, str] = field(default_factory=dict)
    shm_size: str = ""
    gpus: Sequence[str] | None = ()
    """GPUs of the container; None is all."""
    metrics_interval_ms: int = 1000
    log: Path | None = None
    """Log file of the servers; None uses a temporary file that lasts as long as the server."""

    async def start(self, launch: Launch, timeout_s: float) -> ChildServer:
        """Start a server and wait for it. Raises MeasurementError if it fails, UsageError for arguments."""
        name = f"tpx-analyze-{uuid.uuid4().hex[:12]}"
        ports = {port: free_port() for port in PORTS}
        server = await ChildServer.start(
            (self.docker, *run_words(self, launch, name, ports)),
            self.log,
            addresses=addresses_at(ports),
            # `docker run` forwards SIGTERM to the server; a leftover container is removed by force
            cleanup=functools.partial(_read_output, self.docker, "rm", "--force", name),
        )
        # the child is the docker client: monitoring it would not measure the server
        server.pid = None
        await server.ready(timeout_s)
        # a daemon elsewhere runs the server's process there
        if sys.platform == "linux" and os.environ.get("DOCKER_HOST", "unix://").startswith("unix://"):
            words = await _read_output(self.docker, "inspect", "--format", "{{.State.Pid}}", name)
            server.pid = int(words) or None if words.isdecimal() else None
        return server


def run_words(container: Container, launch: Launch, name: str, ports: Mapping[str, int]) -> Iterator[str]:
    """Yield the arguments of `docker run` and of the server in it. Raises UsageError for impossible ones."""
    yield from ("run", "--rm", "--name", name)
    for key, value in {"tpx.analyze": name, **container.labels}.items():
        yield from ("--label", f"{key}={value}")
    arguments = dict(launch.docker_args)
    if arguments.get("network_mode") != "host":
        for port in ports.values():
            yield from ("--publish", f"{LOCALHOST}:{port}:{port}")
    yield from ("--volume", f"{container.models}:{container.models}:ro")
    for mount in container.mounts:
        yield from ("--volume", mount)
    if container.gpus is None or container.gpus:
        # docker parses the value as CSV: without quotes a comma would begin another key
        yield from ("--gpus", "all" if container.gpus is None else f'"device={",".join(container.gpus)}"')
    if container.shm_size:
        yield from ("--shm-size", container.shm_size)
    for key, value in launch.environment.items():
        yield from ("--env", f"{key}={value}")
    yield from _iter_argument_words(arguments)
    yield from (container.image, SERVER)
    flags = {key.replace("_", "-"): values for key, values in launch.flags.items()}
    for port_name in PORTS:
        if port_name in flags:
            raise UsageError(
                f"triton_server_flags: {port_name}: with --triton-launch-mode docker tpx chooses and "
                "publishes the ports; leave it out"
            )
    yield from argv_of({**defaults(container.models, container.metrics_interval_ms, ports), **flags})


def find_docker() -> str:
    """Return the docker command. Raises UsageError if it is missing or has no daemon."""
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


def _iter_argument_words(arguments: Mapping[str, object]) -> Iterator[str]:
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


async def _read_output(*command: str) -> str:
    """Return a command's output, or an empty string if it fails, which is harmless here."""
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
