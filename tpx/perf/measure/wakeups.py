"""The cost of waking a sleeping process on this machine, which is most of a small request's latency while few
are in flight: the client and the server then sleep and wake each other."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Thread
from time import perf_counter_ns

from tpx.perf.levels import CONCURRENCY, Level
from tpx.perf.results import WakeUps
from tpx.processors import usable_processors

ROUNDS = 200
FEW_IN_FLIGHT = 4
"""With more requests in flight neither side sleeps long."""
SLOW_NS = 1_000_000
"""A median latency above this has hardly anything to do with wake-ups."""
_SPINNER = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while os.getppid() == int(sys.argv[2]):
    for _ in range(100_000):
        pass
"""
"""Takes what nobody else wants of one processor, and ends with its parent."""


@contextmanager
def processors_awake(address: str) -> Iterator[None]:
    """Keep the processors of this machine from sleeping until the context ends, for a server on it.

    A sleeping processor of a virtual machine takes 10 to 25 us to wake, and which of both changes from second
    to second: whole runs of one small request in flight were seen at 57 or at 73 us, and at 53 to 59 with a
    spinner of idle priority on each processor. Where a container limits processor time there are none,
    since they would use it up.
    """
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "SCHED_IDLE") else []
    if not is_local(address) or usable_processors() < len(usable):
        usable = []
    words = [sys.executable, "-I", "-S", "-c", _SPINNER]
    spinners = [subprocess.Popen([*words, str(processor), str(os.getpid())]) for processor in usable]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def may_dominate(level: Level, p50_ns: int) -> bool:
    """Return whether wake-ups can be a good part of the latency at a level."""
    return level.kind is CONCURRENCY and level.value <= FEW_IN_FLIGHT and p50_ns <= SLOW_NS


def is_local(address: str) -> bool:
    """Return whether the server at an address, which may have a scheme, is on this machine."""
    host = address.rpartition("://")[2]
    return host.startswith(("localhost", "127.", "[::1]", "::1", "in this process"))


def wake_ups(p50_ns: int, *, local: bool) -> WakeUps:
    """Measure a wake-up, and compare with a median latency: a `local` server is woken here, too."""
    cost_ns = wakeup_ns()
    return WakeUps(cost_ns, cost_ns * (2 if local else 1) / max(p50_ns, 1))


def wakeup_ns(rounds: int = ROUNDS) -> int:
    """Return the median time from the write that wakes a thread to its read, without what both calls take.

    The two threads run on different processors, where there are some, as a client and a busy server do;
    taking turns on one is cheaper. Both sleep in system calls that release the interpreter lock, so that a
    thread costs what a process costs (12 us beside 12 us) without one being started. Blocks some 10 ms.
    """
    ours, theirs = socket.socketpair()
    here, there = socket.socketpair()
    with ours, theirs, here, there, _alone_on_a_processor() as other:
        echo = Thread(target=_echo, args=(theirs, other))
        echo.start()
        try:
            _round_trips(ours, ours, rounds // 10)  # until it has started
            both = _median(_round_trips(ours, ours, rounds))
        finally:
            ours.shutdown(socket.SHUT_RDWR)
            echo.join()
        calls = _median(_round_trips(here, there, rounds))
    return max(0, both // 2 - calls)


@contextmanager
def _alone_on_a_processor() -> Iterator[Sequence[int]]:
    """Keep this thread on one processor meanwhile; yields another one, or nothing."""
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(usable) < 2:
        yield ()
        return
    try:
        os.sched_setaffinity(0, usable[:1])
        yield usable[1:2]
    finally:
        os.sched_setaffinity(0, usable)


def _echo(peer: socket.socket, processors: Sequence[int]) -> None:
    """Send back every byte, on the given processor, until the other end shuts down."""
    if processors:
        os.sched_setaffinity(0, processors)
    while peer.recv(1):
        peer.send(b"x")


def _round_trips(sender: socket.socket, receiver: socket.socket, count: int) -> list[int]:
    """Times from a write to the read of what follows it: the answer, or the same byte."""
    times = []
    for _ in range(count):
        start_ns = perf_counter_ns()
        sender.send(b"x")
        receiver.recv(1)
        times.append(perf_counter_ns() - start_ns)
    return times


def _median(values: list[int]) -> int:
    return sorted(values)[len(values) // 2]
