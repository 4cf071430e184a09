"""The client library that Triton's users have, its asyncio variants."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc.aio
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException

from tests.e2e.foreign import SAMPLES, same

pytestmark = pytest.mark.e2e

Array = npt.NDArray[Any]
ROWS = np.arange(1, 33, dtype=np.float32).reshape(2, 16)
PAIR = np.array([[1, 2]], dtype=np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """One of the two modules, which are spelled alike, and where to call."""

    name: str
    module: ModuleType
    address: str

    @asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[Any]:
        async with self.module.InferenceServerClient(self.address, **options) as client:
            yield client

    def run(self, use: Callable[[Any], Awaitable[None]], **options: Any) -> None:
        """Let a coroutine function have a client, in a loop of its own."""

        async def with_client() -> None:
            async with self.client(**options) as client, asyncio.timeout(30):
                await use(client)

        asyncio.run(with_client())

    def input(self, name: str, array: Array, datatype: str = "FP32", **how: bool) -> Any:
        return self.module.InferInput(name, array.shape, datatype).set_data_from_numpy(array, **how)

    async def description(self, call: Callable[..., Awaitable[Any]], *words: str) -> Any:
        """What a verb that describes something answers, as an object."""
        return await (call(*words, as_json=True) if self.name == "grpc" else call(*words))


@pytest.fixture(params=["http", "grpc"])
def library(request: pytest.FixtureRequest, http_address: str, grpc_address: str) -> Library:
    if request.param == "http":
        return Library(name="http", module=tritonclient.http.aio, address=http_address)
    return Library(name="grpc", module=tritonclient.grpc.aio, address=grpc_address)


def test_every_datatype_comes_back_bit_for_bit(library: Library) -> None:
    async def use(client: Any) -> None:
        for datatype, sent in SAMPLES.items():
            answer = await client.infer(f"echo_{datatype.lower()}", [library.input("x", sent, datatype)])
            assert same(answer.as_numpy("y"), sent), datatype

    library.run(use)


def test_json_both_ways(http_address: str) -> None:
    library = Library(name="http", module=tritonclient.http.aio, address=http_address)

    async def use(client: Any) -> None:
        for datatype in ("BOOL", "UINT64", "INT64", "FP32", "FP64"):
            sent = SAMPLES[datatype]
            answer = await client.infer(
                f"echo_{datatype.lower()}",
                [library.input("x", sent, datatype, binary_data=False)],
                outputs=[library.module.InferRequestedOutput("y", binary_data=False)],
            )
            assert "data" in answer.get_output("y")
            assert same(answer.as_numpy("y"), sent), datatype

    library.run(use)


def test_ids_requested_outputs_and_classes(library: Library) -> None:
    output = library.module.InferRequestedOutput

    async def use(client: Any) -> None:
        inputs = [library.input("INPUT0", ROWS), library.input("INPUT1", ROWS * 2)]
        answer = await client.infer("add_sub", inputs, request_id="x7", outputs=[output("OUTPUT1")])
        response = answer.get_response()
        assert (response["id"] if library.name == "http" else response.id) == "x7"
        assert answer.as_numpy("OUTPUT0") is None
        assert same(answer.as_numpy("OUTPUT1"), -ROWS)
        digit = library.input("image", np.zeros((1, 1, 8, 8), dtype=np.float32))
        best = await client.infer("mnist", [digit], outputs=[output("probabilities", class_count=1)])
        every = await client.infer("mnist", [digit])
        winner = int(np.argmax(every.as_numpy("probabilities")))
        words = best.as_numpy("probabilities")[0, 0]
        assert (words if isinstance(words, str) else words.decode()).split(":")[1] == str(winner)

    library.run(use)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compression_both_ways(library: Library, encoding: str) -> None:
    options = (
        {"compression_algorithm": encoding}
        if library.name == "grpc"
        else {"request_compression_algorithm": encoding, "response_compression_algorithm": encoding}
    )

    async def use(client: Any) -> None:
        answer = await client.infer("identity", [library.input("INPUT0", ROWS)], **options)
        assert same(answer.as_numpy("OUTPUT0"), ROWS)

    library.run(use)


def test_what_the_server_says_of_itself(library: Library) -> None:
    async def use(client: Any) -> None:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("mnist")
        assert not await client.is_model_ready("nobody")
        server = await library.description(client.get_server_metadata)
        assert "binary_tensor_data" in server["extensions"]
        model = await library.description(client.get_model_metadata, "add_sub")
        assert [tensor["name"] for tensor in model["inputs"]] == ["INPUT0", "INPUT1"]
        config = await library.description(client.get_model_config, "add_sub")
        assert (config["config"] if library.name == "grpc" else config)["backend"] == "onnxruntime"
        statistics = await library.description(client.get_inference_statistics, "add_sub")
        assert statistics["model_stats"][0]["name"] == "add_sub"
        index = await library.description(client.get_model_repository_index)
        entries = index["models"] if library.name == "grpc" else index
        assert "mnist" in [entry["name"] for entry in entries]

    library.run(use)


def test_errors_have_their_status(library: Library) -> None:
    async def use(client: Any) -> None:
        for model, array, words, number, name in (
            ("nobody", ROWS, "'nobody' is not found", "404", "NOT_FOUND"),
            ("identity", ROWS[:, :15], r"got \[2,15\]", "400", "INVALID_ARGUMENT"),
        ):
            with pytest.raises(InferenceServerException, match=words) as refused:
                await client.infer(model, [library.input("INPUT0", array)])
            expected = f"StatusCode.{name}" if library.name == "grpc" else number
            assert refused.value.status() == expected
        assert await client.is_server_live()

    library.run(use)


def test_many_requests_at_once_get_their_own_answers(library: Library) -> None:
    async def use(client: Any) -> None:
        async def ask(number: int) -> bool:
            rows = np.full((1 + number % 4, 16), number, dtype=np.float32)
            answer = await client.infer(
                "add_sub", [library.input("INPUT0", rows), library.input("INPUT1", rows * 3)]
            )
            return same(answer.as_numpy("OUTPUT0"), rows * 4) and same(
                answer.as_numpy("OUTPUT1"), rows - rows * 3
            )

        assert all(await asyncio.gather(*[ask(number) for number in range(300)]))

    library.run(use)


def test_a_cancelled_task_ends_at_once_and_is_not_computed(library: Library) -> None:
    async def use(client: Any) -> None:
        async def success_count() -> int:
            answer = await library.description(client.get_inference_statistics, "patient")
            return int(answer["model_stats"][0]["inference_stats"]["success"].get("count", 0))

        before = await success_count()
        task = asyncio.create_task(client.infer("patient", [library.input("x", PAIR)]))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 20)
        answer = await client.infer("patient", [library.input("x", PAIR)])
        assert same(answer.as_numpy("y"), PAIR * 2)
        assert await success_count() == before + 1

    library.run(use)


@pytest.mark.parametrize("model", ["patient", "busy"])
def test_a_deadline_over_grpc_ends_the_call_and_not_the_server(grpc_address: str, model: str) -> None:
    library = Library(name="grpc", module=tritonclient.grpc.aio, address=grpc_address)

    async def use(client: Any) -> None:
        with pytest.raises(InferenceServerException) as late:
            await client.infer(model, [library.input("x", PAIR)], client_timeout=0.05)
        assert late.value.status() == "StatusCode.DEADLINE_EXCEEDED"
        answer = await client.infer(model, [library.input("x", PAIR)], client_timeout=20)
        assert same(answer.as_numpy("y"), PAIR * 2)

    library.run(use)


def test_a_client_over_http_that_gives_up_disturbs_nobody(http_address: str) -> None:
    library = Library(name="http", module=tritonclient.http.aio, address=http_address)

    async def impatient(client: Any) -> None:
        with pytest.raises(TimeoutError):
            await client.infer("patient", [library.input("x", PAIR)])
        assert await client.is_server_live()

    async def patient(client: Any) -> None:
        answer = await client.infer("patient", [library.input("x", PAIR)])
        assert same(answer.as_numpy("y"), PAIR * 2)

    library.run(impatient, conn_timeout=0.2)
    library.run(patient)
