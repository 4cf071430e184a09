"""Commands of `tpx` against the Ray of the network, and waiting for what they bring about."""

import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Any

from tests.cluster.network import HEAD, PORT, ROOT, environment

log = logging.getLogger(__name__)


def tpx(*words: str, exits: int = 0, timeout_s: float = 300) -> "subprocess.CompletedProcess[str]":
    """Run `tpx cluster`, against the head node where the words do not say another; fails with all that it
    wrote if it exits otherwise.
    """
    named = any(word.startswith("--ray-address") for word in words)
    place = () if named else ("--ray-address", f"{HEAD}:{PORT}")
    command = [sys.executable, "-m", "tpx", "cluster", *words, *place]
    began = time.perf_counter()
    done = ended(
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
        ),
        timeout_s,
    )
    log.info("tpx cluster %s: %d after %.1f s", words[0], done.returncode, time.perf_counter() - began)
    assert done.returncode == exits, told(done)
    return done


def told(done: "subprocess.CompletedProcess[str]") -> str:
    """Return what a command said, for the message of an assertion."""
    return f"{' '.join(done.args)}: exited with {done.returncode}\n{done.stdout}{done.stderr}"


def status(name: str = "tpx") -> dict[str, Any]:
    """Return the state of a cluster, as `tpx cluster status --json` does."""
    reader = _reader()
    assert reader.stdin is not None
    assert reader.stdout is not None
    print(name, file=reader.stdin, flush=True)
    line = reader.stdout.readline()
    assert line, f"the reader of states exited with {reader.wait(10)}: see its stderr"
    found: dict[str, Any] = json.loads(line)
    assert "error" not in found, found["error"]
    return found


@cache
def _reader() -> "subprocess.Popen[str]":
    """Start the process that reads states, once for each network."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.cluster.reader", f"{HEAD}:{PORT}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=ROOT,
    )


def end_reader() -> None:
    """End the process that reads states, if there is one."""
    if _reader.cache_info().currsize:
        with _reader() as reader:
            reader.kill()
        _reader.cache_clear()


def on_head(*words: str) -> "subprocess.Popen[str]":
    """Start `tpx` on the head node, with its Ray."""
    return subprocess.Popen(
        [sys.executable, "-m", "tpx", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment() | {"RAY_ADDRESS": f"{HEAD}:{PORT}"},
    )


def perf(*words: str) -> "subprocess.CompletedProcess[str]":
    """Run `tpx perf` on the head node, with its Ray."""
    return ended(on_head("perf", *words))


def ended(process: "subprocess.Popen[str]", timeout_s: float = 300) -> "subprocess.CompletedProcess[str]":
    """Return what a process gave when it has ended; it is killed when that takes too long."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as exc:
        process.kill()
        done = subprocess.CompletedProcess(process.args, -9, *process.communicate())
        raise AssertionError(f"not ended after {timeout_s:g} s: {told(done)}") from exc
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def wait_until(
    what: str, fulfilled: Callable[[], object], timeout_s: float = 120, tell: Callable[[], object] = str
) -> None:
    """Wait until a condition holds; fails with what `tell` returns if it does not in time."""
    began = time.perf_counter()
    while not fulfilled():
        assert time.perf_counter() - began < timeout_s, f"after {timeout_s:g} s not yet: {what} {tell()}"
        time.sleep(0.1)
    log.info("%s: %.1f s", what, time.perf_counter() - began)
