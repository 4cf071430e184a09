"""Clients that die in the middle: nothing of them is checked but that nobody else notices."""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.protocol.v2_requests import encode_infer_request
from tests.soak.kinds.over_grpc import channel_to, infer_call, message
from tests.soak.kinds.over_http import Connection, random_rows
from tests.soak.kinds.streams import repeat_inputs, repeat_message, stream_call
from tests.soak.traffic import Target, expect
from tpx.protocol.tensors import Tensor

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: a socket that is closed resets its connection, whatever is still on its way."""
_HTTP2_BEGINNING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_VICTIM = Path(__file__).parents[1] / "victim.py"
_VICTIMS_EVERY_S = 0.5


def closed_sockets(target: Target, rng: np.random.Generator) -> Iterator[int]:
    """Requests that end anywhere, answers that nobody reads, connections closed or reset."""
    while True:
        over_http2 = rng.random() < 0.2
        data = _HTTP2_BEGINNING + rng.bytes(40) if over_http2 else _http_request(rng)
        port = target.grpc_port if over_http2 else target.http_port
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            if rng.random() < 0.5:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            whole = rng.random() < 0.4
            connection.sendall(data if whole else data[: int(rng.integers(1, len(data)))])
            if whole and rng.random() < 0.5:
                connection.recv(10)
        yield 0


def _http_request(rng: np.random.Generator) -> bytes:
    if rng.random() < 0.3:
        inputs = repeat_inputs(rng.integers(0, 100, 20, np.int32), delay_ms=5)
        body = json.dumps({name: array.tolist() for name, array in inputs.items()}).encode()
        head = b"POST /v2/models/repeat/generate_stream HTTP/1.1\r\nHost: localhost\r\n"
    else:
        model = ("double", "busy")[int(rng.integers(2))]
        rows = np.zeros((1, 2), np.float32) if model == "busy" else random_rows(rng, large=0.3)
        start, tail = encode_infer_request([Tensor.from_numpy("x", rows)])
        body = start + b"".join(map(bytes, tail))
        head = (
            b"POST /v2/models/%b/infer HTTP/1.1\r\nHost: localhost\r\nInference-Header-Content-Length: %d\r\n"
            % (
                model.encode(),
                len(start),
            )
        )
    return head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def reset_streams(target: Target, rng: np.random.Generator) -> Iterator[int]:
    """Calls that are cancelled or run out of time, in the queue, while they compute, between two answers."""
    while True:
        with channel_to(target) as channel:
            infer, stream = infer_call(channel), stream_call(channel)
            for _ in range(20):
                rows = np.zeros((1, 2), np.float32)
                calls = [infer.future(message("busy", rows), timeout=float(rng.uniform(0.001, 0.05)))]
                calls.append(infer.future(message("double", random_rows(rng, large=0.3))))
                calls.append(stream(iter([repeat_message(rng.integers(0, 9, 20, np.int32), delay_ms=5)])))
                time.sleep(float(rng.uniform(0, 0.02)))
                for call in calls:
                    call.cancel()
                yield 0


def killed_processes(target: Target, rng: np.random.Generator) -> Iterator[int]:
    """Processes that have connections, streams and a region of shared memory, and get SIGKILL."""
    connection = Connection(target)
    try:
        while True:
            _kill_one(target, float(rng.uniform(0, 0.2)))
            _unregister_victim(connection)
            yield 0
            time.sleep(_VICTIMS_EVERY_S)
    finally:
        connection.close()


def _unregister_victim(connection: Connection) -> None:
    """A region stays while a request in flight uses it, also one of a client that is gone."""
    status, answer = connection.outcome("POST", "/v2/systemsharedmemory/region/victim/unregister")
    expect(status == 200, f"unregistering was answered {answer.body[:300]!r}")
    for _ in range(200):
        if connection.outcome("GET", "/v2/systemsharedmemory/region/victim/status")[0] == 404:
            return
        time.sleep(0.05)
    expect(False, "the region of a client that is gone stays in use")


def _kill_one(target: Target, after_s: float) -> None:
    key = f"tpx_soak_{os.getpid()}_victim"
    words = [sys.executable, "-S", "-E", str(_VICTIM), str(target.http_port), str(target.grpc_port), key]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as victim:
        if victim.stdout is None:
            return
        line = victim.stdout.readline()
        time.sleep(after_s)
        victim.send_signal(signal.SIGKILL)
        expect(line == b"working\n", f"a client that was to be killed could not work: {line!r}")
    Path("/dev/shm", key).unlink(missing_ok=True)
