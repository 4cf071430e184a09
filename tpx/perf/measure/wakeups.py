"""The cost of waking a sleeping process on this machine.

It dominates the latency of small requests while few are in flight, because client and server then sleep
and wake each other.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median_high
from threading import Thread
from time import perf_counter_ns

from tpx.perf.levels import CONCURRENCY, Level
from tpx.perf.results import WakeUps
from tpx.processors import usable_processors

ROUNDS = 200
FEW_IN_FLIGHT = 4
"""Concurrency above which neither side sleeps long."""
SLOW_NS = 1_000_000
"""Median latency above which wake-ups hardly matter."""
_SPINNER = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while os.getppid() == int(sys.argv[2]):
    for _ in range(100_000):
        pass
"""
"""Program that burns idle time of one processor, and ends with its parent."""


@contextmanager
def processors_awake(address: str) -> Iterator[None]:
    """Keep the processors of this machine from sleeping until the context ends, if the server is local.

    A sleeping processor of a virtual machine takes 10 to 25 us to wake, and the delay changes from
    second to second: whole runs with one small request in flight took 57 or 73 us per request, and 53
    to 59 us with an idle-priority spinner on each processor. There are no spinners if a container
    limits processor time, because they would use up its quota.
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
    """Return True if wake-ups can be a large part of the latency at a level."""
    return level.kind is CONCURRENCY and level.value <= FEW_IN_FLIGHT and p50_ns <= SLOW_NS


def is_local(address: str) -> bool:
    """Return True if the server at an address, which may have a scheme, is on this machine."""
    host = address.rpartition("://")[2]
    return host.startswith(("localhost", "127.", "[::1]", "::1", "in this process"))


def wake_ups(p50_ns: int, *, local: bool) -> WakeUps:
    """Measure a wake-up and compare it with a median latency. A `local` server is woken here, too."""
    cost_ns = wakeup_ns()
    return WakeUps(cost_ns, cost_ns * (2 if local else 1) / max(p50_ns, 1))


def wakeup_ns(rounds: int = ROUNDS) -> int:
    """Return the median time from the write that wakes a thread to its read, without the cost of both
    calls.

    The two threads run on different processors, if there are several, like a client and a busy server;
    taking turns on one is cheaper. Both sleep in system calls that release the interpreter lock, so a
    thread costs the same as a process (12 us each) without starting one. Blocks for some 10 ms.
    """
    ours, theirs = socket.socketpair()
    here, there = socket.socketpair()

    def echo_bytes(processors: Sequence[int]) -> None:
        """Echo every byte, on the given processor, until the other end shuts down."""
        if processors:
            os.sched_setaffinity(0, processors)
        while theirs.recv(1):
            theirs.send(b"x")

    with ours, theirs, here, there, _pin_to_processor() as other:
        echo = Thread(target=echo_bytes, args=(other,))
        echo.start()
        try:
            _time_round_trips(ours, ours, rounds // 10)  # until the thread has started
            both = median_high(_time_round_trips(ours, ours, rounds))
        finally:
            ours.shutdown(socket.SHUT_RDWR)
            echo.join()
        calls = median_high(_time_round_trips(here, there, rounds))
    # half a round trip is one wake-up, plus one send and one receive
    return max(0, both // 2 - calls)


@contextmanager
def _pin_to_processor() -> Iterator[Sequence[int]]:
    """Pin this thread to one processor until the context ends; yield another processor, or nothing."""
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(usable) < 2:
        yield ()
        return
    try:
        os.sched_setaffinity(0, usable[:1])
        yield usable[1:2]
    finally:
        os.sched_setaffinity(0, usable)


def _time_round_trips(sender: socket.socket, receiver: socket.socket, count: int) -> list[int]:
    """Return the times from a write to the read of the response, or of the same byte."""
    times = []
    for _ in range(count):
        start_ns = perf_counter_ns()
        sender.send(b"x")
        receiver.recv(1)
        times.append(perf_counter_ns() - start_ns)
    return times
