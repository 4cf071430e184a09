"""Constant traffic over HTTP and gRPC, each request with its time, its answer, and what was wrong."""

import contextlib
import http.client
import json
import threading
import time
from dataclasses import dataclass, field

import numpy as np
import tritonclient.grpc as triton

RECONNECT_S = 0.1
"""How long a gRPC client refuses requests by itself after a refused connection: about 1 s unless told."""
RECONNECT_SOON = [
    (f"grpc.{bound}_reconnect_backoff_ms", int(RECONNECT_S * 1000)) for bound in ("initial", "min", "max")
]

BEYOND = 1e6
"""Between the values of two threads: more than a thread sends; FP32 is exact up to sixteen times as much."""


@dataclass(slots=True)
class Request:
    start_s: float
    end_s: float
    protocol: str
    fault: str


@dataclass(slots=True)
class Traffic:
    """Threads that send one request after the other, each with a value of its own to be answered."""

    host: str
    http_port: int
    grpc_port: int
    model: str = "identity"
    threads: int = 4
    pause_s: float = 0.005
    requests: list[Request] = field(default_factory=list)
    resent: int = 0
    """Requests sent again because their idle connection had been closed or their stream was refused; they are
    in `requests` once.
    """
    _stop: threading.Event = field(default_factory=threading.Event)
    _running: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> "Traffic":
        for number in range(self.threads):
            target = self._http if number % 2 == 0 else self._grpc
            self._running.append(threading.Thread(target=target, args=(number,)))
            self._running[-1].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._running:
            thread.join(60)

    @property
    def failed(self) -> list[Request]:
        return [request for request in self.requests if request.fault]

    def failed_after(self, at_s: float) -> list[Request]:
        """Failures of requests that began after a moment."""
        return [request for request in self.failed if request.start_s > at_s]

    def _note(self, protocol: str, start_s: float, fault: str) -> None:
        self.requests.append(Request(start_s, time.perf_counter(), protocol, fault))
        self._stop.wait(self.pause_s)

    def _http(self, number: int) -> None:
        connection = http.client.HTTPConnection(self.host, self.http_port, timeout=40)
        value = number * BEYOND
        with contextlib.closing(connection):
            while not self._stop.is_set():
                start_s = time.perf_counter()
                value += 1.0
                tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 16], "data": [value] * 16}
                try:
                    connection.request(
                        "POST", f"/v2/models/{self.model}/infer", json.dumps({"inputs": [tensor]})
                    )
                    answer = connection.getresponse()
                    body = answer.read()
                except (OSError, http.client.HTTPException) as exc:
                    connection.close()
                    # a kept connection that was closed while idle: RFC 9112 has the client ask again
                    if isinstance(exc, http.client.RemoteDisconnected):
                        self.resent += 1
                    else:
                        self._note("http", start_s, f"{type(exc).__name__}: {exc}")
                    continue
                right = answer.status == 200 and json.loads(body)["outputs"][0]["data"] == [value] * 16
                self._note("http", start_s, "" if right else f"{answer.status} {body[:200]!r}")

    def _grpc(self, number: int) -> None:
        value = np.full((1, 16), number * BEYOND, np.float32)
        target = f"{self.host}:{self.grpc_port}"
        with triton.InferenceServerClient(target, channel_args=RECONNECT_SOON) as client:
            while not self._stop.is_set():
                start_s = time.perf_counter()
                value = value + 1
                given = triton.InferInput("INPUT0", [1, 16], "FP32").set_data_from_numpy(value)
                try:
                    answer = client.infer(self.model, [given], client_timeout=40).as_numpy("OUTPUT0")
                    self._note("grpc", start_s, "" if np.array_equal(answer, value) else f"wrong: {answer}")
                except triton.InferenceServerException as exc:
                    # REFUSED_STREAM: it was not processed, and RFC 9113 (8.7) has the client ask again
                    if "RST_STREAM with error code 7" in str(exc):
                        self.resent += 1
                    else:
                        self._note("grpc", start_s, str(exc))
