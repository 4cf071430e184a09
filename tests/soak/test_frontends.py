"""A server whose frontends are killed again and again under constant requests; SOAK_FRONTENDS_SECONDS=600."""

import http.client
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest

from tests.e2e.child import Child, serve
from tests.protocol.v2_requests import encode_infer_request
from tests.serving.live import SERVICE, floats, infer_message, outputs_of
from tests.serving.onnx_files import doubling, write_model
from tests.soak.looks import MEGABYTE, Look
from tpx.protocol import messages
from tpx.protocol.tensors import Tensor

SECONDS = float(os.environ.get("SOAK_FRONTENDS_SECONDS", "0"))
EVERY_S = float(os.environ.get("SOAK_FRONTENDS_KILL_SECONDS", "30"))
COUNT = 2
WARM_UP_S = 60
"""Until every shape is bound and every heap has its size."""
AFTER_KILL_S = 2
"""In which the connections of a killed frontend are found broken."""
BIG = 150_000
"""Numbers in a request that needs a block of its own."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.e2e,
    pytest.mark.timeout(SECONDS + 120),
    pytest.mark.skipif(not SECONDS, reason="runs for SOAK_FRONTENDS_SECONDS"),
]


class Clients:
    """Threads that ask for the double of numbers, and what has come of it."""

    def __init__(self, child: Child) -> None:
        self._http, self._grpc = child.port("HTTPService"), child.port("GRPCInferenceService")
        self._over = threading.Event()
        self._lock = threading.Lock()
        self.killed_s = 0.0
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        works = [self._over_http] * 6 + [self._over_grpc] * 3
        self._threads = [
            threading.Thread(target=self._run, args=(work, seed)) for seed, work in enumerate(works)
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)

    def _run(self, work: Callable[[random.Random], None], seed: int) -> None:
        """Work on one connection after the other. Only a kill may break one."""
        chance = random.Random(seed)
        while not self._over.is_set():
            try:
                work(chance)
            except (OSError, http.client.HTTPException, grpc.RpcError) as exc:
                since_s = time.perf_counter() - self.killed_s
                self._note(
                    "broken", "" if since_s < AFTER_KILL_S else f"{since_s:.1f} s after a kill: {exc!r}"
                )

    def _note(self, what: str, problem: str = "") -> None:
        with self._lock:
            self.counts[what] += 1
            if problem:
                self.problems.append(problem)

    def _over_http(self, chance: random.Random) -> None:
        with closing(http.client.HTTPConnection("127.0.0.1", self._http, timeout=30)) as connection:
            while not self._over.is_set():
                model = chance.choice(("double", "plain"))
                count = BIG if chance.random() < 0.02 else chance.choice((2, 16))
                values = np.full((1, count), chance.randrange(1000), np.float32)
                head, tail = encode_infer_request([Tensor.from_numpy("x", values)])
                size = {"Inference-Header-Content-Length": str(len(head))}
                connection.request("POST", f"/v2/models/{model}/infer", head + b"".join(tail), size)
                answer = connection.getresponse()
                data = answer.read()
                start = int(answer.headers.get("Inference-Header-Content-Length", "0"))
                right = answer.status == 200 and data[start:] == (2 * values).tobytes()
                self._note("HTTP", "" if right else f"HTTP {answer.status}: {data[:100]!r}")

    def _over_grpc(self, chance: random.Random) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"127.0.0.1:{self._grpc}", options=options) as channel:
            call = channel.unary_unary(SERVICE + "ModelInfer")
            while not self._over.is_set():
                value = chance.randrange(1000)
                answer = call(
                    infer_message("double", {"x": floats([value, 1])}), timeout=30, wait_for_ready=True
                )
                outputs = outputs_of(messages.ModelInferResponse.FromString(answer))
                self._note("gRPC", "" if outputs == {"y": [[2 * value, 2]]} else f"gRPC: {outputs}")


def test_only_the_connections_of_a_killed_frontend_notice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path, "double", doubling("batch", "n"), "max_batch_size: 8 dynamic_batching {}")
    write_model(tmp_path, "plain", doubling("batch", "n"), "max_batch_size: 8")
    with serve("--model-repository", tmp_path, f"--frontends={COUNT}") as child:
        child.ready()
        engine, clients = child.engine, Clients(child)
        chance, began_s = random.Random(0), time.perf_counter()

        def frontends() -> list[psutil.Process]:
            return [each for each in child.processes if each != engine]

        looks: list[Look] = []
        waits_s: list[float] = []
        next_s = began_s + EVERY_S
        while time.perf_counter() < began_s + SECONDS:
            time.sleep(0.5)
            if time.perf_counter() < next_s:
                continue
            next_s += EVERY_S
            looks.append(Look.at([engine], time.perf_counter() - began_s))
            victim = chance.choice(frontends())
            clients.killed_s = killed_s = time.perf_counter()  # before clients can notice
            victim.kill()
            while len(frontends()) < COUNT or victim in frontends():
                time.sleep(0.005)
            waits_s.append(time.perf_counter() - killed_s)
        clients.end()
        warm = [look for look in looks if look.at_s > WARM_UP_S]
        report = [
            f"{dict(clients.counts)}, {len(waits_s)} kills, back within {max(waits_s, default=0):.2f} s",
            *(
                f"engine at {look.at_s:.0f} s: {look.rss_bytes / MEGABYTE:.0f} MB, {look.descriptors}"
                for look in looks
            ),
        ]
        with capsys.disabled():
            sys.stdout.write("\n" + "\n".join(report) + "\n")
        assert clients.problems == []
        if len(warm) > 1:
            assert warm[-1].descriptors <= warm[0].descriptors + 2
            assert warm[-1].rss_bytes < warm[0].rss_bytes + 64 * MEGABYTE
        assert child.stop() == 0
        assert not [line for line in child.err if "Traceback" in line]
