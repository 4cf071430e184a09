"""A process that has imported what models' processes need, and forks one for each order of the server.

Starting an interpreter and importing numpy takes 0.2 s of a core; a fork takes some milliseconds, and the
processes share the memory of what was imported.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
from collections.abc import Sequence

_ORDER_BYTES = 1 << 20
_DESCRIPTORS = 7


def wait_for_orders(descriptor: int) -> Sequence[int]:
    """Fork a process per order until the server ends; return, in each of these, its descriptors.

    An order is a packet: `{"directory": ..., "environment": changes}` with descriptors, of which the first
    two become the streams for output, is answered with `{"pid": ...}` and a descriptor of the process, or
    with `{"errno": ...}`; `{"reap": pid}` with `{"status": ...}` of a process that has ended.
    """
    orders = socket.socket(fileno=descriptor)
    orders.set_inheritable(False)
    gc.collect()
    gc.freeze()  # a collection would write to the memory that processes share
    while True:
        packet, descriptors, _, _ = socket.recv_fds(orders, _ORDER_BYTES, _DESCRIPTORS)
        if not packet:
            os._exit(0)
        order = json.loads(packet)
        if "reap" in order:
            _, status = os.waitpid(order["reap"], 0)
            orders.send(json.dumps({"status": os.waitstatus_to_exitcode(status)}).encode())
            continue
        try:
            if _fork(orders):
                orders.close()
                return _become(descriptors, order["directory"], order["environment"])
        except OSError as exc:
            orders.send(json.dumps({"errno": exc.errno}).encode())
        for each in descriptors:
            os.close(each)


def _fork(orders: socket.socket) -> bool:
    """Fork, and tell the server. Return True in the new process, once the server has been told: it starts
    another one with the same descriptors if it is told nothing. Raises OSError.
    """
    begins, told = os.pipe()
    try:
        pid = os.fork()
        if pid == 0:
            os.close(told)
            told = -1
            if not os.read(begins, 1):
                os._exit(1)
            return True
        try:
            process = os.pidfd_open(pid)
        except OSError:
            os.close(told)  # it ends
            told = -1
            os.waitpid(pid, 0)
            raise
        socket.send_fds(orders, [json.dumps({"pid": pid}).encode()], [process])
        os.close(process)
        os.write(told, b"1")
        return False
    finally:
        for each in (begins, told):
            if each >= 0:
                os.close(each)


def _become(
    descriptors: Sequence[int], directory: str | None, changes: dict[str, str | None]
) -> Sequence[int]:
    """Make this process as if the server had started it; return the descriptors that it serves."""
    os.setsid()
    for stream, given in enumerate(descriptors[:2], 1):
        os.dup2(given, stream)
        os.close(given)
    for name, value in changes.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value
    if directory is not None:
        os.chdir(directory)
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # otherwise all models draw the same numbers
    return descriptors[2:]
