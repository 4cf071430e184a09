"""`python -m benchmarks.cluster_cycle`: the cost of one cycle of a cluster supervisor.

Every part runs for real but the replicas: one actor answers for all of them. Times are of one processor, the
median of several cycles; a supervisor has one every half second.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from statistics import median

import ray
from ray.experimental import internal_kv

from tpx.argv import from_argv
from tpx.cluster.balancer import ReplicaRoute, Slots, changes, haproxy_config
from tpx.cluster.policy import Autoscaler, ReplicaSample
from tpx.cluster.replica import ReplicaMeter, ReplicaStatus
from tpx.cluster.spec import LATENCIES, ClusterSpec
from tpx.cluster.state import ClusterState, ReplicaRecord

COUNTS = (10, 100, 1000)
LOOKS = 7
FAMILIES = 40
"""Of a replica's page of metrics, each with a line per model and version."""


class Answering:
    """An actor that answers as a replica does."""

    async def status(self, number: int) -> ReplicaStatus:
        return _status(number)


def _status(number: int) -> ReplicaStatus:
    return ReplicaStatus(
        state="ready",
        host=f"10.0.{number // 250}.{number % 250}",
        http_port=8000,
        grpc_port=8001,
        models=1,
        served=True,
        sample=ReplicaSample(requests_per_s=900.0 + number % 7, utilization=0.6, p99_ms=4.2, queue_ms=1.1),
    )


def _took_ms(work: Callable[[], object]) -> float:
    found = []
    for _ in range(LOOKS):
        start = time.perf_counter()
        work()
        found.append((time.perf_counter() - start) * 1e3)
    return median(found)


def page_us(models: int) -> float:
    """Return the microseconds in which a replica, on its own node, reads its page of metrics."""
    lines = [
        f'nv_inference_family_{number}{{model="model_{model}",version="1"}} {number * 1234.5}'
        for number in range(FAMILIES)
        for model in range(models)
    ]
    lines += [
        f'{name}{{model="model_{model}",version="1"{bound}}} 1234'
        for model in range(models)
        for name, bound in (
            ("nv_inference_request_success", ""),
            *((f"{LATENCIES}_bucket", f',le="{bound}"') for bound in (*range(100, 5100, 100), "+Inf")),
        )
    ]
    page, meter = "\n".join(lines).encode(), ReplicaMeter(1.0)
    return _took_ms(lambda: meter.sample(page, time.monotonic())) * 1e3


def cycle(count: int, actor: "ray.actor.ActorHandle[Answering]") -> dict[str, float]:
    """Return the milliseconds of each part, for so many replicas."""
    spec = from_argv(ClusterSpec, ("--model-repository=/models", f"--max-replicas={count}"))
    names = [f"replica-{number}" for number in range(count)]
    state = ClusterState(releases={1: spec.plain()}, desired=count)
    state.members = [ReplicaRecord(name=name, release=1) for name in names]
    statuses: Sequence[ReplicaStatus] = ()

    def ask() -> None:
        nonlocal statuses
        asked = [actor.status.remote(number) for number in range(count)]
        ray.wait(asked, num_returns=count, timeout=60)
        statuses = ray.get(asked)

    figures = {"ask": _took_ms(ask)}
    scaler = Autoscaler(spec)
    samples = [status.sample for status in statuses]
    figures["policy"] = _took_ms(lambda: scaler.decide(count, samples, time.monotonic()))
    routes = [
        ReplicaRoute(replica=name, host=status.host, http_port=8000, grpc_port=8001)
        for name, status in zip(names, statuses, strict=True)
    ]
    empty = Slots.empty(2 * count + 4)
    full = empty.placed(routes)
    figures["slots"] = _took_ms(lambda: list(changes(full, full.placed(routes))))
    figures["show"] = _took_ms(lambda: [asdict(status) for status in statuses])
    figures["state"] = _took_ms(lambda: state.dump() == state.dump())
    dumped = state.dump()
    figures["KV"] = _took_ms(lambda: internal_kv._internal_kv_put(b"tpx/bench", dumped, overwrite=True))
    figures["a cycle"] = sum(figures.values())
    figures["all commands"] = _took_ms(lambda: list(changes(empty, full)))
    figures["configuration"] = _took_ms(lambda: haproxy_config(spec.traffic, full, "/run/haproxy.sock"))
    return figures


def main() -> None:
    """Print a table in Markdown."""
    os.environ["RAY_AUTH_MODE"] = "disabled"  # Ray would leave a token in the home directory
    with contextlib.redirect_stdout(sys.stderr):
        ray.init(num_cpus=1, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
        actor = ray.remote(Answering).options(num_cpus=0).remote()
        ray.get(actor.status.remote(0))
        found = {count: cycle(count, actor) for count in COUNTS}
        ray.shutdown()
    for models in (1, 10):
        print(f"a replica with {models} models reads its page in {page_us(models):.0f} us")
    print("| ms per cycle | " + " | ".join(f"{count} replicas" for count in COUNTS) + " |")
    print("| --- |" + " ---: |" * len(COUNTS))
    for part in found[COUNTS[0]]:
        print(f"| {part} | " + " | ".join(f"{found[count][part]:.2f}" for count in COUNTS) + " |")


if __name__ == "__main__":
    main()
