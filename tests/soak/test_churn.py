"""32 threads load, unload and replace models while others ask them, and every answer is checked.

A quarter of a minute, or CHURN_SECONDS (`make churn`: a minute). What may fail: a request to a model that is
unloaded at that moment, with 404 or 503 and the words for it. A model that is only ever replaced fails never.
"""

import base64
import http.client
import json
import os
import random
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.child import Child, serve
from tests.serving.onnx_files import save
from tests.serving.repository.controlled import times
from tests.soak.looks import Look

SECONDS = float(os.environ.get("CHURN_SECONDS", "15"))
COMING = [f"m{number}" for number in range(8)]
"""Models that come and go: their factors are their numbers and two."""
STEADY = "steady"
"""Replaced all the time, by one that multiplies with 3 or with 5, and never unloaded."""
FACTORS = (3, 5)
CHANGERS, ASKERS = 32, 8

GONE = re.compile(
    r"Request for unknown model: 'm\d' "
    r"(is not found|has no available versions|version 1 is not at ready state)"
)

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(SECONDS + 120)]


class Client:
    """One connection, and what came over it."""

    def __init__(self, port: int, seed: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []

    def post(self, path: str, body: Any = None) -> tuple[int, Any]:
        self._connection.request("POST", f"/v2/{path}", json.dumps(body) if body is not None else None)
        answer = self._connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else None

    def change(self) -> None:
        """Load, load with another configuration or with files, unload, or replace what is steady."""
        name = self.random.choice([*COMING, STEADY])
        what = self.random.choice(["load", "load", "config", "files", "unload"])
        if name == STEADY:
            write(self.root, STEADY, self.random.choice(FACTORS))
            what = "load"
        body = None
        if what == "config":
            config = {"max_batch_size": self.random.choice([0, 4, 8]), "backend": "onnxruntime"}
            if not config["max_batch_size"]:
                config = {}
            body = {"parameters": {"config": json.dumps(config)}}
        if what == "files":
            model = (self.root / name / "1" / "model.onnx").read_bytes()
            body = {"parameters": {"config": "{}", "file:1/model.onnx": base64.b64encode(model).decode()}}
        verb = "unload" if what == "unload" else "load"
        status, answer = self.post(f"repository/models/{name}/{verb}", body)
        self.counts[what] += 1
        if status != 200:
            self.wrong.append(f"{what} of {name}: {status} {answer}")

    def ask(self) -> None:
        name = self.random.choice([*COMING, STEADY, STEADY])
        value = self.random.randrange(1000)
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [value, 1]}
        status, answer = self.post(f"models/{name}/infer", {"inputs": [tensor]})
        if status == 200:
            factors = FACTORS if name == STEADY else (factor_of(name),)
            if answer["outputs"][0]["data"] not in [[factor * value, factor] for factor in factors]:
                self.wrong.append(f"{name} of {value}: {answer}")
            self.counts["answered"] += 1
        elif name != STEADY and status in (404, 503) and GONE.fullmatch(answer["error"]):
            self.counts["not there"] += 1
        else:
            self.wrong.append(f"{name}: {status} {answer}")

    root = Path()

    def close(self) -> None:
        self._connection.close()


def factor_of(name: str) -> int:
    return int(name[1:]) + 2


def write(root: Path, name: str, factor: int) -> None:
    """Put a model in its place in one step; several threads may."""
    directory = root / name / "1"
    new = save(times(factor), directory / f".new-{threading.get_ident()}")
    new.replace(directory / "model.onnx")


def until(ends_ns: int, client: Client, step: Callable[[], None]) -> None:
    try:
        while time.perf_counter_ns() < ends_ns and len(client.wrong) < 5:
            step()
    except (OSError, http.client.HTTPException) as exc:
        client.wrong.append(f"{type(exc).__name__}: {exc}")
    finally:
        client.close()


def at_rest(child: Child) -> Look:
    """The process once nothing comes or goes any more."""
    look = Look.at(child.processes, 0)
    for _ in range(20):
        time.sleep(0.5)
        before, look = look, Look.at(child.processes, 0)
        if (before.descriptors, before.threads) == (look.descriptors, look.threads):
            break
    return look


def churn(child: Child, root: Path, seconds: float) -> tuple[Counter[str], list[str]]:
    """Everything at once; returns what was done, and what was wrong."""
    port = child.port("HTTPService")
    ends_ns = time.perf_counter_ns() + int(seconds * 1e9)
    clients = [Client(port, seed) for seed in range(CHANGERS + ASKERS)]
    threads = []
    for number, client in enumerate(clients):
        client.root = root
        step = client.change if number < CHANGERS else client.ask
        threads.append(threading.Thread(target=until, args=(ends_ns, client, step)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum((c.counts for c in clients), Counter()), [wrong for c in clients for wrong in c.wrong]


def all_unloaded(client: Client) -> dict[str, tuple[str, str]]:
    """The states of all models after each was unloaded."""
    for name in (*COMING, STEADY):
        assert client.post(f"repository/models/{name}/unload")[0] == 200
    ends_ns = time.perf_counter_ns() + 20_000_000_000
    while True:
        index = client.post("repository/index")[1]
        states = {entry["name"]: (entry.get("state", ""), entry.get("reason", "")) for entry in index}
        if all(state == ("UNAVAILABLE", "unloaded") for state in states.values()):
            return states
        assert time.perf_counter_ns() < ends_ns, states
        time.sleep(0.05)


def test_no_request_fails_that_need_not_while_32_threads_load_and_unload(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, temporary = tmp_path / "models", tmp_path / "temporary"
    temporary.mkdir()
    for name in COMING:
        write(root, name, factor_of(name))
    write(root, STEADY, FACTORS[0])
    options = ["--model-repository", str(root), "--model-control-mode=explicit", f"--load-model={STEADY}"]
    with serve(*options, env={"TMPDIR": str(temporary)}) as child:
        child.ready()
        churn(child, root, min(3.0, SECONDS / 5))  # threads and pools that stay are made now
        before = at_rest(child)
        counts, wrong = churn(child, root, SECONDS)
        client = Client(child.port("HTTPService"), 0)
        states = all_unloaded(client)
        assert client.post(f"repository/models/{STEADY}/load")[0] == 200
        client.close()
        after = at_rest(child)
        assert child.stop() == 0
    with capsys.disabled():
        done = ", ".join(f"{what} {count}" for what, count in sorted(counts.items()))
        sys.stdout.write(
            f"\n{SECONDS:g} s: {done}; threads {before.threads} and {after.threads}, descriptors "
            f"{before.descriptors} and {after.descriptors}\n"
        )
    assert wrong == []
    assert set(states) == {*COMING, STEADY}
    assert counts["answered"] > 100
    assert counts["load"] > 100
    assert counts["unload"] > 50
    assert after.descriptors <= before.descriptors + 2
    assert after.threads <= before.threads + 2
    assert list(temporary.glob("tpx-*")) == []
