"""The limits of this machine as a load generator, measured against a server that does nothing."""

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

import numpy as np

from tpx.errors import MeasurementError
from tpx.perf.clients.endpoint import connect
from tpx.perf.clients.model import ModelDescription, ModelKey, ServerDescription
from tpx.perf.connecting import ConnectedModel
from tpx.perf.inputs.feed import RoundRobin
from tpx.perf.inputs.requests import Requests
from tpx.perf.levels import CONCURRENCY, REQUEST_RATE, Level, PaceSpec
from tpx.perf.options import SessionSpec
from tpx.perf.options.load import TargetSpec
from tpx.perf.results import DataSummary, LevelResult
from tpx.perf.server_statistics import ModelTree, ServerStatistics
from tpx.perf.session import Session
from tpx.perf.settings import LevelSettings
from tpx.protocol.tensors import Tensor

LEVELS = (*(Level(CONCURRENCY.name, count) for count in (1, 16, 64)), Level(REQUEST_RATE.name, 1000.0))
CONNECTIONS = 16
"""Connections of the open loop."""
STOP_S = 5.0


@dataclass(frozen=True, slots=True)
class SelfTest:
    """The results of the levels, by protocol."""

    results: Mapping[str, tuple[LevelResult, ...]]

    def __str__(self) -> str:
        lines = ["*** Self test against a server that does nothing ***"]
        for protocol, results in self.results.items():
            lines += [f"  {protocol.upper()}, {_describe_result(result)}" for result in results]
        return "\n".join(lines) + "\n"


def cpu_us(result: LevelResult) -> float:
    """Return the client's CPU time per request."""
    return result.client_busy * result.duration_ns / 1000 / max(result.requests, 1)


def _describe_result(result: LevelResult) -> str:
    if result.open_loop is None:
        cost = cpu_us(result)
        return (
            f"{result.level}: {result.throughput_infer_per_s:.0f} infer/sec, client {cost:.1f} usec of CPU "
            f"per request ({1e6 / cost:.0f} infer/sec per core)"
        )
    late_us = [result.open_loop.slip.at(percentile) / 1000 for percentile in (50.0, 99.0)]
    return (
        f"{result.level.value:g} requests per second: sent {late_us[0]:.0f} usec late (p50), "
        f"{late_us[1]:.0f} usec (p99)"
    )


async def self_test(seconds: float = 1.0) -> SelfTest:
    """Measure HTTP and gRPC, one window of `seconds` per level.

    Raises MeasurementError if the null server's process does not start.
    """
    settings = LevelSettings(
        rule="ci",
        interval_ms=int(seconds * 1000),
        fixed_windows=1,
        warmup_s=seconds / 4,
        pace=PaceSpec(max_connections=CONNECTIONS),
    )
    results: dict[str, tuple[LevelResult, ...]] = {}
    for protocol in ("http", "grpc"):
        async with null_server(protocol) as port:
            target = TargetSpec(model="null", url=f"127.0.0.1:{port}", protocol=protocol)
            async with Session(SessionSpec(target=target), connect=_connect_null_server) as session:
                results[protocol] = tuple([await session.measure(level, settings) for level in LEVELS])
        if any(result.failed or not result.requests for result in results[protocol]):
            raise MeasurementError("requests to the null server of --self-test failed")
    return SelfTest(results)


@asynccontextmanager
async def _connect_null_server(spec: SessionSpec, *_: object) -> AsyncIterator[ConnectedModel]:
    """Connect to the null server, which has no metadata and no statistics."""
    key = ModelKey("null")
    connections = connect(spec.target.protocol, spec.endpoint(key))
    client, control = connections.client, connections.control
    try:
        request = await client.prepare([Tensor.from_numpy("x", np.zeros((1, 16), np.float32), "FP32")])
        yield ConnectedModel(
            server=ServerDescription(name="null", version="1", extensions=frozenset()),
            model=ModelDescription(name="null", inputs=()),
            client=client,
            control=control,
            requests=Requests(feed=RoundRobin((request,)), data=DataSummary()),
            statistics=ServerStatistics(control, ModelTree(key), available=False),
        )
    finally:
        await client.close()
        await control.close()


@asynccontextmanager
async def null_server(protocol: str) -> AsyncIterator[int]:
    """Start the null server in its own process; yield its port on loopback."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tpx.perf.null_server",
        protocol,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    # not None: both were requested as pipes
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
