"""Nodes on one machine: network namespaces on a bridge, each with a Ray node, and no other traffic."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

SUBNET = "10.77.9"
HEAD = f"{SUBNET}.1"
PORT = 6391
ROOT = Path(__file__).parents[2]
ENVOY = shutil.which("envoy", path=f"{os.environ.get('PATH', os.defpath)}:{Path(sys.executable).parent}")
ON_THREE_NODES = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        os.geteuid() != 0 or not shutil.which("haproxy") or not shutil.which("ip"),
        reason="needs root for network namespaces, HAProxy and iproute2",
    ),
]
"""Marks of tests that need the network."""


def address_of(node: int) -> str:
    return f"{SUBNET}.{10 + node}"


def pids_of(node: int) -> list[int]:
    """Return the processes in a node's namespace; none without a namespace."""
    words = ("ip", "netns", "pids", f"tpxt{node}")
    return [int(pid) for pid in subprocess.run(words, check=False, capture_output=True).stdout.split()]


def sh(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=60)


@dataclass(slots=True)
class Network:
    """A head node without processors in this namespace, and three nodes of two processors each."""

    folder: Path
    """Ray's directory, on a disk of its own."""
    disk: Path
    """A directory on a disk of 4 MiB."""
    head: set[int] = field(default_factory=set)
    """Process ids of the head, node 0, which has no namespace of its own."""

    @property
    def ray_address(self) -> str:
        return f"{HEAD}:{PORT}"

    def start_node(self, node: int, *around: str) -> None:
        """Start Ray on a node, whose namespace is there; `around` are words before its command.

        Ray gives a node 30 s to register, too few on a busy machine; it is started again, as by a supervisor.
        """
        before = _ray_processes()
        ray = str(Path(sys.executable).with_name("ray"))
        # of the processes of a node, those that no test needs take a second of CPU each
        words = [ray, "start", "--disable-usage-stats", "--include-log-monitor=false"]
        words += ["--object-store-memory=80000000"]
        if node:
            words += [
                f"--address={self.ray_address}",
                f"--node-ip-address={address_of(node)}",
                "--num-cpus=2",
            ]
            words = ["ip", "netns", "exec", f"tpxt{node}", *around, *words]
        else:
            words += ["--head", f"--port={PORT}", f"--node-ip-address={HEAD}", "--num-cpus=0"]
            words += ["--include-dashboard=false", "--no-monitor", f"--temp-dir={self.folder}"]
        for _ in range(3):
            done = subprocess.run(
                words, check=False, capture_output=True, text=True, timeout=300, env=environment(), cwd=ROOT
            )
            if node == 0:
                self.head = _ray_processes() - before
            if done.returncode == 0 or "timed out during startup" not in done.stderr:
                break
            self.kill_node(node)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"

    def kill_node(self, node: int) -> None:
        """End all of a node at once, as a power cut does."""
        for pid in pids_of(node) if node else self.head:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def node_of(self, replica: Mapping[str, Any]) -> int:
        """Return the node that a replica is on."""
        return next(node for node in (1, 2, 3) if address_of(node) == replica["host"])

    def cut(self, node: int) -> None:
        """Drop every packet from and to a node."""
        sh("ip", "link", "set", f"tpxtv{node}", "down")

    def join(self, node: int) -> None:
        sh("ip", "link", "set", f"tpxtv{node}", "up")

    def close(self) -> None:
        for node in (1, 2, 3, 0):
            self.kill_node(node)


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "RAY_USAGE_STATS_ENABLED": "0",
        # a token in the home directory would have the head ask for it
        "RAY_AUTH_MODE": "disabled",
        "RAY_enable_open_telemetry": "0",
    }


def _ray_processes() -> set[int]:
    found = set()
    for process in psutil.process_iter(["cmdline"]):
        words = (process.info["cmdline"] or [])[:3]
        if any("/ray/" in word or word.startswith(("ray::", "ray.util.client")) for word in words):
            found.add(process.pid)
    return found


@contextlib.contextmanager
def network() -> Iterator[Network]:
    """Make the namespaces and start Ray in them; all is gone afterwards."""
    running = [pid for node in (1, 2, 3) for pid in pids_of(node)]
    assert not running, f"processes {running} of another run are in the namespaces"
    _remove_namespaces()  # of a run that was killed
    sh("ip", "link", "add", "tpxtbr", "type", "bridge")
    try:
        sh("ip", "addr", "add", f"{HEAD}/24", "dev", "tpxtbr")
        sh("ip", "link", "set", "tpxtbr", "up")
        for node in (1, 2, 3):
            _add_namespace(node)
        # before the nodes start: what is mounted later they do not see
        with small_disk("tpxr", 200) as folder, small_disk("tpxd", 4) as disk:
            made = Network(folder, disk)
            try:
                for node in range(4):
                    made.start_node(node)
                yield made
            finally:
                made.close()
    finally:
        _remove_namespaces()


@contextlib.contextmanager
def small_disk(name: str, size_mib: int) -> Iterator[Path]:
    """Mount a file system of its own that a test can fill."""
    with tempfile.TemporaryDirectory(prefix=name) as folder:
        sh("mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", folder)
        try:
            yield Path(folder)
        finally:
            sh("umount", "--lazy", folder)


@contextlib.contextmanager
def filled(folder: Path) -> Iterator[None]:
    """Leave no room on the disk of a directory."""
    path = folder / "filler"
    try:
        with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
            while file.write(bytes(1 << 20)):
                pass
        yield
    finally:
        path.unlink()


def _add_namespace(node: int) -> None:
    name, link = f"tpxt{node}", f"tpxtv{node}"
    sh("ip", "netns", "add", name)
    sh("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
    sh("ip", "link", "set", link, "master", "tpxtbr", "up")
    sh("ip", "-n", name, "addr", "add", f"{address_of(node)}/24", "dev", "eth0")
    sh("ip", "-n", name, "link", "set", "eth0", "up")
    sh("ip", "-n", name, "link", "set", "lo", "up")


def _remove_namespaces() -> None:
    """Remove the namespaces and links that exist."""
    for node in (1, 2, 3):
        for words in (("ip", "link", "del", f"tpxtv{node}"), ("ip", "netns", "del", f"tpxt{node}")):
            subprocess.run(words, check=False, capture_output=True)
    subprocess.run(("ip", "link", "del", "tpxtbr"), check=False, capture_output=True)
