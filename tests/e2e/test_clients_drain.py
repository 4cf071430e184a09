"""A server that goes away under load: every call is answered, by it or by the next one on its port."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import numpy as np
import pytest

from tests.e2e.child import serve
from tests.protocol.v2_requests import encode_grpc_request
from tests.waiting import eventually, until
from tpx.errors import ResponseError, WireError
from tpx.examples import write
from tpx.protocol.grpc.client import GrpcClientConnection, connect
from tpx.protocol.tensors import Tensor

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

METHOD = "/inference.GRPCInferenceService/ModelInfer"
CALLERS = 8


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drain")
    write(folder, ["identity"])
    return folder


def request() -> bytes:
    """An inference of 16 numbers."""
    values = np.arange(16, dtype=np.float32).reshape(1, 16)
    return encode_grpc_request("identity", "", [Tensor.from_numpy("INPUT0", values)])


Call = Callable[[bytes], Awaitable[bytes]]


async def load_through_a_change(call: Call, leave: Callable[[], None], gone: Callable[[], bool]) -> int:
    """Keep calling while one server leaves and another stays; returns how many calls were answered."""
    message = request()
    expected = await call(message)
    done = 0
    stopping = False

    async def caller() -> None:
        nonlocal done
        while not stopping:
            assert await call(message) == expected
            done += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(CALLERS):
            group.create_task(caller())
        await until(lambda: done >= 200)
        leave()
        await asyncio.to_thread(eventually, gone)
        before = done
        await until(lambda: done >= before + 200)
        stopping = True
    return done


def through_a_change(
    models: Path, run: Callable[[str, Callable[[], None], Callable[[], bool]], Awaitable[int]]
) -> None:
    """Two servers on one port; the first gets the signal to end while calls are made."""
    with serve("--model-repository", models, "--reuse-grpc-port", "--drain-secs=2") as leaving:
        port = leaving.ready().port("GRPCInferenceService")
        statuses: list[int | None] = []

        def gone() -> bool:
            statuses.append(leaving.ended(0.05))
            return statuses[-1] is not None

        async def scenario() -> None:
            words = ["--http-port=0", "--metrics-port=0", f"--grpc-port={port}", "--reuse-grpc-port"]
            with serve("--model-repository", models, *words, ports=False) as staying:
                await asyncio.to_thread(staying.ready)
                await run(f"127.0.0.1:{port}", lambda: leaving.send(signal.SIGTERM), gone)
                assert await asyncio.to_thread(staying.stop) == 0

        asyncio.run(asyncio.wait_for(scenario(), 50))
        assert statuses[-1] == 0


def test_no_call_of_grpcio_fails(models: Path) -> None:
    async def run(address: str, leave: Callable[[], None], gone: Callable[[], bool]) -> int:
        # connections of their own, so that both servers have some
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(CALLERS)]
        turns = iter(range(10**9))

        async def call(message: bytes) -> bytes:
            channel = channels[next(turns) % CALLERS]
            return bytes(await channel.unary_unary(METHOD)(message, timeout=20))

        try:
            return await load_through_a_change(call, leave, gone)
        finally:
            for channel in channels:
                await channel.close()

    through_a_change(models, run)


def test_no_call_of_our_own_client_fails(models: Path) -> None:
    async def run(address: str, leave: Callable[[], None], gone: Callable[[], bool]) -> int:
        host, _, port = address.partition(":")
        connections: list[GrpcClientConnection | None] = [None] * CALLERS
        turns = iter(range(10**9))

        async def call(message: bytes) -> bytes:
            turn = next(turns) % CALLERS
            while True:
                connection = connections[turn]
                if connection is None or connection.closing:
                    connection = connections[turn] = await connect(host, int(port))
                try:
                    return bytes(await connection.unary(METHOD, message))
                except ResponseError:
                    raise
                except WireError:
                    if not connection.closing:
                        raise

        try:
            return await load_through_a_change(call, leave, gone)
        finally:
            for connection in connections:
                if connection is not None:
                    connection.close()

    through_a_change(models, run)
