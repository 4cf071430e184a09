"""Streams with the client library that Triton's users have, blocking and asynchronous."""

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from queue import Queue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
from tritonclient.utils import InferenceServerException

from tests.e2e.child import Child, serve
from tests.serving.frontends.streams import repeat, repeat_body, write_streaming_models

pytestmark = pytest.mark.e2e

Answer = tuple[Any, InferenceServerException | None]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    repository = tmp_path_factory.mktemp("streaming")
    write_streaming_models(repository)
    with serve("--model-repository", repository) as child:
        yield child.ready()
        assert child.stop() == 0
        assert child.err == []


@pytest.fixture(scope="module")
def address(server: Child) -> str:
    return f"127.0.0.1:{server.port('GRPCInferenceService')}"


def inputs(values: list[int], delay: int = 0) -> list[Any]:
    out = []
    for name, array in repeat(values, delay).items():
        datatype = "INT32" if name == "IN" else "UINT32"
        out.append(tritonclient.grpc.InferInput(name, array.shape, datatype).set_data_from_numpy(array))
    return out


def floats(*values: float) -> list[Any]:
    array = np.array([values], np.float32)
    return [tritonclient.grpc.InferInput("x", array.shape, "FP32").set_data_from_numpy(array)]


@pytest.fixture
def client(address: str) -> Iterator[Any]:
    with tritonclient.grpc.InferenceServerClient(address) as opened:
        yield opened


def start(client: Any, **options: Any) -> "Queue[Answer]":
    answers: Queue[Answer] = Queue()
    client.start_stream(lambda result, error: answers.put((result, error)), **options)
    return answers


@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_sequences_errors_and_compression_on_one_stream(client: Any, compression: str | None) -> None:
    answers = start(client, compression_algorithm=compression)
    client.async_stream_infer("double", floats(1, 2), sequence_id=7, sequence_start=True, priority=1)
    client.async_stream_infer("nowhere", floats(1, 2), request_id="lost")
    client.async_stream_infer("double", floats(3), sequence_id=7, sequence_end=True, timeout=10**6)
    first, second, third = (answers.get(timeout=10) for _ in range(3))
    assert first[0].as_numpy("y").tolist() == [[2, 4]]
    assert second[1] is not None
    assert second[1].message() == "Request for unknown model: 'nowhere' is not found"
    assert third[0].as_numpy("y").tolist() == [[6]]
    client.stop_stream()
    assert answers.empty()


def test_stopping_a_stream_waits_for_what_is_due_or_cancels_it(client: Any) -> None:
    answers = start(client)
    client.async_stream_infer("repeat", inputs([1, 2, 3], delay=50))
    client.stop_stream()
    assert [int(answers.get_nowait()[0].as_numpy("OUT")[0]) for _ in range(3)] == [1, 2, 3]
    answers = start(client)
    client.async_stream_infer("repeat", inputs([1] * 10_000, delay=20))
    answers.get(timeout=10)
    client.stop_stream(cancel_requests=True)
    *_, (result, error) = list(answers.queue)
    assert result is None
    assert "StatusCode.CANCELLED" in str(error.status())


def test_the_asynchronous_client_streams_both_ways(address: str) -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        for n in range(20):
            yield {"model_name": "repeat", "inputs": inputs([n, n + 1]), "request_id": str(n)}
            yield {"model_name": "double", "inputs": floats(n), "request_id": f"plain {n}"}

    async def scene() -> None:
        async with tritonclient.grpc.aio.InferenceServerClient(address) as opened:
            got: dict[str, list[float]] = {}
            async for result, error in opened.stream_infer(requests()):
                assert error is None
                name = "OUT" if result.as_numpy("OUT") is not None else "y"
                got.setdefault(result.get_response().id, []).append(float(result.as_numpy(name).flat[0]))
            assert got == {
                **{str(n): [n, n + 1] for n in range(20)},
                **{f"plain {n}": [2 * n] for n in range(20)},
            }

    asyncio.run(asyncio.wait_for(scene(), 20))


async def _read_all(answers: Any) -> None:
    async for _ in answers:
        pass


def test_the_asynchronous_client_cancels(address: str) -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": "lone", "inputs": inputs([1] * 10_000, delay=20)}

    async def scene() -> None:
        async with tritonclient.grpc.aio.InferenceServerClient(address) as opened:
            answers = opened.stream_infer(requests())
            await anext(answers)
            assert answers.cancel()
            with pytest.raises(asyncio.CancelledError):
                await _read_all(answers)
            result = await opened.infer("double", floats(1))
            assert result.as_numpy("y").tolist() == [[2]]

    asyncio.run(asyncio.wait_for(scene(), 20))


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("version", ["--http1.0", "--http1.1"])
def test_curl_prints_events_as_they_come(server: Child, version: str) -> None:
    url = f"http://127.0.0.1:{server.port('HTTPService')}/v2/models/repeat/generate_stream"
    done = subprocess.run(
        ["curl", "-sN", version, "-d", repeat_body([7, 8]).decode(), url],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    lines = ['"IDX":0,"OUT":7', '"IDX":1,"OUT":8']
    wanted = "".join(f'data: {{{line},"model_name":"repeat","model_version":"1"}}\n\n' for line in lines)
    assert done.stdout == wanted
