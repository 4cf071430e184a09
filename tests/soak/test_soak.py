"""Everything at once for a minute, or for SOAK_SECONDS (`make soak`): nothing wrong, nothing grows."""

import os
import re
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.child import FRONTENDS, Child, serve
from tests.soak.kinds import dying, in_shared_memory, loading, over_grpc, over_http, streams
from tests.soak.looks import MEGABYTE, Bounds, Look
from tests.soak.models import COMING, write_models
from tests.soak.report import summary
from tests.soak.traffic import Kind, Target, Traffic

SECONDS = float(os.environ.get("SOAK_SECONDS", "60"))
WARM_UP_S = min(60.0, SECONDS / 3)
RAMP_S = 3
"""Of the time after the warm-up: connections come back, and with them their buffers."""
SETTLE_S = 10
"""Until the server has noticed that its clients are gone."""

# Of a minute, 40 s are left after the warm-up, and the allocator gives memory back and takes it again in
# steps of some megabytes, for large tensors and for models that come and go: one step of 3 MB in the middle
# looks like 7 MB/min. The traffic is 1000 to 2000 answers a second, so that the bound still finds a leak of
# 200 bytes an answer, less than any object that could be forgotten. Ten minutes average the steps away.
# Every frontend has buffers and blocks of its own to fill at first, and shared memory counts in both.
SHORT_MEGABYTES = 12 * (1 + 2 * FRONTENDS)
BOUNDS = Bounds(memory_per_minute=MEGABYTE * (1 if SECONDS >= 600 else SHORT_MEGABYTES))

KINDS: dict[str, Kind] = {
    "HTTP, binary": over_http.binary,
    "HTTP, mixed": over_http.mixed,
    "gRPC": over_grpc.unary,
    "gRPC, many at once": over_grpc.at_once,
    "stream, in order": streams.in_order,
    "stream, decoupled": streams.decoupled,
    "server-sent events": streams.events,
    "shared memory, HTTP": in_shared_memory.over_http,
    "shared memory, gRPC": in_shared_memory.over_grpc,
    "load and unload": loading.coming_and_going,
    "replace": loading.replacing,
    "while it is replaced": loading.meanwhile,
    "closed sockets": dying.closed_sockets,
    "reset streams": dying.reset_streams,
    "killed processes": dying.killed_processes,
}

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(SECONDS + 120)]


def at_rest(child: Child, clock: Callable[[], float]) -> Look:
    """The server when all its clients have gone: once two looks a second apart agree."""
    look = Look.at(child.processes, clock())
    for _ in range(SETTLE_S):
        time.sleep(1)
        before, look = look, Look.at(child.processes, clock())
        if (before.descriptors, before.threads) == (look.descriptors, look.threads):
            break
    return look


def pending(child: Child) -> list[str]:
    """The models that say that requests wait."""
    url = f"http://127.0.0.1:{child.port('Metrics Service')}/metrics"
    with urllib.request.urlopen(url, timeout=10) as response:
        page = response.read().decode()
    gauges = re.findall(r"^nv_inference_pending_request_count(\{.*\}) (\S+)$", page, re.MULTILINE)
    assert gauges
    return [f"{labels}: {value}" for labels, value in gauges if float(value)]


def test_nothing_is_wrong_and_nothing_grows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_models(tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir() if path.name != COMING)
    words = ["--model-control-mode=explicit", *(f"--load-model={name}" for name in names)]
    with serve("--model-repository", tmp_path, *words) as child:
        child.ready()
        target = Target(
            http_port=child.port("HTTPService"),
            grpc_port=child.port("GRPCInferenceService"),
            repository=tmp_path,
        )
        traffic = Traffic(target, KINDS)
        begun = time.perf_counter()
        looks: list[Look] = []

        def clock() -> float:
            return time.perf_counter() - begun

        traffic.run(WARM_UP_S, lambda: None)
        before = at_rest(child, clock)
        resumed = clock()
        traffic.run(SECONDS - WARM_UP_S, lambda: looks.append(Look.at(child.processes, clock())))
        after = at_rest(child, clock)
        deaths = {
            name: traffic.steps[name] for name, kind in KINDS.items() if kind.__module__ == dying.__name__
        }
        looks = [look for look in looks if look.at_s > resumed + RAMP_S]
        problems = [*traffic.failures, *(f"requests wait: {item}" for item in pending(child))]
        if not traffic.failures:
            problems += BOUNDS.broken(looks, before, after)
            problems += [f"nothing was done by {name}" for name in KINDS if not traffic.steps[name]]
        with capsys.disabled():
            sys.stdout.write("\n" + summary(traffic.counts, deaths, looks, before, after, BOUNDS, problems))
        assert problems == []
        assert child.stop() == 0
        assert child.err == []
