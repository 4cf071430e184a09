"""The limits of this machine as a load generator, measured against a server that does nothing."""

import asyncio
import gc
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import perf_counter_ns
from typing import cast

import numpy as np

from tpx.errors import MeasurementError
from tpx.perf.clients.base import Client
from tpx.perf.clients.endpoint import Endpoint, connect
from tpx.perf.clients.model import ModelKey
from tpx.perf.inputs.feed import RoundRobin
from tpx.perf.loads.base import Load
from tpx.perf.loads.closed import ClosedLoop
from tpx.perf.loads.rate import OpenLoopSettings, RateLoad
from tpx.perf.loads.schedules import evenly
from tpx.protocol.tensors import Tensor

CONCURRENCIES = (1, 16, 64)
PACED_PER_S = 1000.0
STOP_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """A closed loop against the null server: what came through, and what it cost this process."""

    protocol: str
    concurrency: int
    requests_per_s: float
    cpu_us: float
    """Processor time of the client per request."""

    @property
    def per_core(self) -> float:
        """Requests per second that would fill one processor."""
        return 1e6 / self.cpu_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """How late requests of an open loop were sent on this machine, in µs."""

    protocol: str
    rate_per_s: float
    p50_us: float
    p99_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """Everything that was measured."""

    ceilings: tuple[Ceiling, ...]
    pacings: tuple[Pacing, ...]

    def ceiling(self, protocol: str) -> Ceiling:
        """The best of a protocol."""
        return max((c for c in self.ceilings if c.protocol == protocol), key=lambda c: c.per_core)


async def self_test(seconds: float = 1.0) -> SelfTest:
    """Measure HTTP and gRPC, `seconds` for each concurrency and for the pacing of each.

    Raises MeasurementError where the null server's process does not come up.
    """
    ceilings: list[Ceiling] = []
    pacings: list[Pacing] = []
    for protocol in ("http", "grpc"):
        async with null_server(protocol) as port:
            endpoint = Endpoint(host="127.0.0.1", port=port, model=ModelKey("null"))
            client = connect(protocol, endpoint).client
            try:
                request = await client.prepare(
                    [Tensor.from_numpy("x", np.zeros((1, 16), np.float32), "FP32")]
                )
                feed = RoundRobin((request,))
                ceilings += [await _ceiling(client, feed, protocol, c, seconds) for c in CONCURRENCIES]
                pacings.append(await _pacing(client, feed, protocol, seconds))
            finally:
                await client.close()
    return SelfTest(ceilings=tuple(ceilings), pacings=tuple(pacings))


@asynccontextmanager
async def null_server(protocol: str) -> AsyncIterator[int]:
    """A process with the null server; yields its port on loopback."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tpx.perf.null_server",
        protocol,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    # both are pipes, because we asked for them
    stdin, stdout = cast("asyncio.StreamWriter", process.stdin), cast("asyncio.StreamReader", process.stdout)
    try:
        line = await asyncio.wait_for(stdout.readline(), 30)
        if not line.strip().isdigit():
            raise MeasurementError("the null server of --self-test did not start")
        yield int(line)
    finally:
        stdin.close()
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()


async def _ceiling(
    client: Client, feed: RoundRobin, protocol: str, concurrency: int, seconds: float
) -> Ceiling:
    slots = await client.open(concurrency)
    await _played(ClosedLoop(client, slots, feed), seconds / 4)
    load = ClosedLoop(client, slots, feed)
    begun_ns, cpu_ns = perf_counter_ns(), load.processor_ns
    await _played(load, seconds)
    elapsed_ns, cpu_ns = perf_counter_ns() - begun_ns, load.processor_ns - cpu_ns
    count = max(len(load.records), 1)
    return Ceiling(
        protocol=protocol,
        concurrency=concurrency,
        requests_per_s=count * 1e9 / elapsed_ns,
        cpu_us=cpu_ns / count / 1000,
    )


async def _pacing(client: Client, feed: RoundRobin, protocol: str, seconds: float) -> Pacing:
    load = RateLoad(client, await client.open(16), feed, evenly(PACED_PER_S), OpenLoopSettings())
    await _played(load, seconds)
    rows = load.records.since(0)
    late_us = (rows["start_ns"] - rows["intended_ns"]) / 1000
    return Pacing(
        protocol=protocol,
        rate_per_s=PACED_PER_S,
        p50_us=float(np.quantile(late_us, 0.5)),
        p99_us=float(np.quantile(late_us, 0.99)),
    )


async def _played(load: Load, seconds: float) -> None:
    gc.collect()
    gc.disable()
    try:
        load.start()
        await asyncio.sleep(seconds)
        await load.stop(STOP_S)
    finally:
        gc.enable()
    if load.failed or not len(load.records):
        raise MeasurementError("requests to the null server of --self-test failed")


def self_test_text(test: SelfTest) -> str:
    """The figures as lines for a person."""
    lines = [
        f"  {c.protocol.upper()}, concurrency {c.concurrency}: {c.requests_per_s:.0f} infer/sec, "
        f"client {c.cpu_us:.1f} usec of CPU per request ({c.per_core:.0f} infer/sec per core)"
        for c in test.ceilings
    ]
    lines += [
        f"  {p.protocol.upper()}, {p.rate_per_s:.0f} requests per second: "
        f"sent {p.p50_us:.0f} usec late (p50), {p.p99_us:.0f} usec (p99)"
        for p in test.pacings
    ]
    return "\n".join(["*** Self test against a server that does nothing ***", *lines]) + "\n"
