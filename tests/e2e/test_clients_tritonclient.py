"""The client library that Triton's users have: over HTTP and gRPC, blocking and with asyncio."""

import asyncio
import inspect
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException

from tests.e2e.child import Child, until_waiting
from tests.e2e.foreign import SAMPLES, same

pytestmark = pytest.mark.e2e

Array = npt.NDArray[Any]
ROWS = np.arange(1, 33, dtype=np.float32).reshape(2, 16)
STATUS = {"INVALID_ARGUMENT": "400", "NOT_FOUND": "404"}


MODULES: dict[str, ModuleType] = {
    "http": tritonclient.http,
    "http.aio": tritonclient.http.aio,
    "grpc": tritonclient.grpc,
    "grpc.aio": tritonclient.grpc.aio,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """One of the four modules, which are spelled alike, and a client of it."""

    name: str
    client: Any
    runner: asyncio.Runner

    @property
    def module(self) -> ModuleType:
        return MODULES[self.name]

    @property
    def is_grpc(self) -> bool:
        return self.name.startswith("grpc")

    def status(self, code: str) -> str:
        """What an exception has for this code of gRPC's."""
        return f"StatusCode.{code}" if self.is_grpc else STATUS[code]

    def call(self, verb: str, *words: Any, **options: Any) -> Any:
        """Call a method of the client and wait for what it returns."""

        async def finish(answer: Any) -> Any:
            return await asyncio.wait_for(answer, 30)

        answer = getattr(self.client, verb)(*words, **options)
        return self.runner.run(finish(answer)) if inspect.isawaitable(answer) else answer

    def infer(self, model: str, inputs: Sequence[Any], **options: Any) -> Any:
        return self.call("infer", model, inputs, **options)

    def input(self, name: str, array: Array, datatype: str = "FP32", **how: bool) -> Any:
        return self.module.InferInput(name, array.shape, datatype).set_data_from_numpy(array, **how)

    def output(self, name: str, **how: Any) -> Any:
        return self.module.InferRequestedOutput(name, **how)

    def add_sub(self, **options: Any) -> Any:
        inputs = [self.input("INPUT0", ROWS), self.input("INPUT1", ROWS * 2)]
        return self.infer("add_sub", inputs, **options)

    def description(self, verb: str, *words: str) -> Any:
        """What a verb that describes something answers, as an object."""
        return self.call(verb, *words, **({"as_json": True} if self.is_grpc else {}))

    def success_count(self, model: str) -> int:
        statistics = self.description("get_inference_statistics", model)["model_stats"][0]
        return int(statistics["inference_stats"]["success"].get("count", 0))


@pytest.fixture(scope="module")
def libraries(http_address: str, grpc_address: str) -> Iterator[Mapping[str, Library]]:
    """A client of each module; those of asyncio share a loop."""

    async def connect(name: str, **options: Any) -> Any:
        address = grpc_address if name.startswith("grpc") else http_address
        return MODULES[name].InferenceServerClient(address, **options)

    with asyncio.Runner() as runner:
        made = {
            name: Library(
                name=name,
                client=runner.run(connect(name, **({"concurrency": 8} if name == "http" else {}))),
                runner=runner,
            )
            for name in MODULES
        }
        yield made
        for library in made.values():
            library.call("close")


@pytest.fixture(params=MODULES)
def library(request: pytest.FixtureRequest, libraries: Mapping[str, Library]) -> Library:
    return libraries[request.param]


@pytest.fixture(params=["http", "http.aio"])
def over_http(request: pytest.FixtureRequest, libraries: Mapping[str, Library]) -> Library:
    return libraries[request.param]


@pytest.fixture(params=["grpc", "grpc.aio"])
def over_grpc(request: pytest.FixtureRequest, libraries: Mapping[str, Library]) -> Library:
    return libraries[request.param]


@pytest.fixture(params=["http.aio", "grpc.aio"])
def over_asyncio(request: pytest.FixtureRequest, libraries: Mapping[str, Library]) -> Library:
    return libraries[request.param]


# every datatype


@pytest.mark.parametrize("datatype", SAMPLES)
def test_every_datatype_comes_back_bit_for_bit(library: Library, datatype: str) -> None:
    sent = SAMPLES[datatype]
    answer = library.infer(f"echo_{datatype.lower()}", [library.input("x", sent, datatype)])
    assert same(answer.as_numpy("y"), sent)


@pytest.mark.parametrize("answer_is_json", [True, False], ids=["json", "binary"])
@pytest.mark.parametrize("datatype", [name for name in SAMPLES if name not in ("FP16", "BF16")])
def test_every_datatype_that_json_has_comes_back_from_it(
    over_http: Library, datatype: str, answer_is_json: bool
) -> None:
    sent = SAMPLES[datatype]
    if datatype == "BYTES":
        sent = np.array([["", "ünïcödé 日本", 'quote " and \\', "x" * 5000]], dtype=np.object_)
    answer = over_http.infer(
        f"echo_{datatype.lower()}",
        [over_http.input("x", sent, datatype, binary_data=False)],
        outputs=[over_http.output("y", binary_data=not answer_is_json)],
    )
    assert ("data" in answer.get_output("y")) is answer_is_json
    got = answer.as_numpy("y")
    if datatype == "BYTES":
        texts = [item if isinstance(item, str) else item.decode() for item in got.ravel()]
        assert texts == list(sent.ravel())
    else:
        assert same(got, sent)


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_halves_are_refused_in_a_json_answer(over_http: Library, datatype: str) -> None:
    with pytest.raises(InferenceServerException, match=f"sending {datatype} data via JSON") as refused:
        over_http.infer(
            f"echo_{datatype.lower()}",
            [over_http.input("x", SAMPLES[datatype], datatype)],
            outputs=[over_http.output("y", binary_data=False)],
        )
    assert refused.value.status() == "400"


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("second", [True, False])
def test_json_and_binary_tensors_mix_in_one_request_and_one_answer(
    over_http: Library, first: bool, second: bool
) -> None:
    answer = over_http.infer(
        "add_sub",
        [
            over_http.input("INPUT0", ROWS, binary_data=first),
            over_http.input("INPUT1", ROWS * 2, binary_data=second),
        ],
        outputs=[
            over_http.output("OUTPUT1", binary_data=first),
            over_http.output("OUTPUT0", binary_data=second),
        ],
    )
    assert same(answer.as_numpy("OUTPUT0"), ROWS * 3)
    assert same(answer.as_numpy("OUTPUT1"), -ROWS)
    assert ("data" in answer.get_output("OUTPUT1")) is not first
    assert ("data" in answer.get_output("OUTPUT0")) is not second


# what a request can ask for


def test_only_requested_outputs_come_in_the_order_asked_for(library: Library) -> None:
    one = library.add_sub(outputs=[library.output("OUTPUT1")])
    assert one.as_numpy("OUTPUT0") is None
    assert same(one.as_numpy("OUTPUT1"), -ROWS)
    both = library.add_sub(outputs=[library.output("OUTPUT1"), library.output("OUTPUT0")]).get_response()
    outputs = both["outputs"] if isinstance(both, dict) else [{"name": o.name} for o in both.outputs]
    assert [output["name"] for output in outputs] == ["OUTPUT1", "OUTPUT0"]


def test_classification_gives_the_best_classes_and_their_labels(library: Library) -> None:
    digits = np.zeros((2, 1, 8, 8), dtype=np.float32)
    digits[1, 0, 1:7, 3:5] = 16
    inputs = [library.input("image", digits)]
    all_of_them = library.infer("mnist", inputs).as_numpy("probabilities")
    asked = [library.output("probabilities", class_count=3)]
    answer = library.infer("mnist", inputs, outputs=asked).as_numpy("probabilities")
    names = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    assert answer.shape == (2, 3)
    for row, probabilities in zip(answer, all_of_them, strict=True):
        best = np.argsort(-probabilities)[:3]
        texts = [item if isinstance(item, str) else item.decode() for item in row]
        assert texts == [f"{probabilities[index]:f}:{index}:{names[index]}" for index in best]


@pytest.mark.parametrize("request_encoding", [None, "gzip", "deflate"])
@pytest.mark.parametrize("response_encoding", [None, "gzip", "deflate"])
def test_compressed_bodies_both_ways_over_http(
    over_http: Library, request_encoding: str | None, response_encoding: str | None
) -> None:
    answer = over_http.add_sub(
        request_compression_algorithm=request_encoding, response_compression_algorithm=response_encoding
    )
    assert same(answer.as_numpy("OUTPUT0"), ROWS * 3)
    assert same(answer.as_numpy("OUTPUT1"), -ROWS)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_messages_over_grpc(over_grpc: Library, algorithm: str) -> None:
    image = np.tile(np.arange(1000, dtype=np.float32), 150).reshape(1, -1)
    answer = over_grpc.infer(
        "large", [over_grpc.input("x", image)], compression_algorithm=algorithm, client_timeout=20
    )
    assert same(answer.as_numpy("y"), image)


# time


@pytest.mark.parametrize("model", ["patient", "busy"])
def test_a_deadline_over_grpc_ends_the_call_and_not_the_server(over_grpc: Library, model: str) -> None:
    inputs = [over_grpc.input("x", np.array([[1, 2]], dtype=np.float32))]
    with pytest.raises(InferenceServerException) as late:
        over_grpc.infer(model, inputs, client_timeout=0.05)
    assert late.value.status() == "StatusCode.DEADLINE_EXCEEDED"
    answer = over_grpc.infer(model, inputs, client_timeout=20)
    assert same(answer.as_numpy("y"), np.array([[2, 4]], dtype=np.float32))


def test_callbacks_bring_every_answer_to_its_question(libraries: Mapping[str, Library]) -> None:
    over_grpc = libraries["grpc"]
    answers: dict[int, Any] = {}
    complete = threading.Event()

    def bring(number: int, result: Any, error: Any) -> None:
        answers[number] = error or result.as_numpy("OUTPUT0")
        if len(answers) == 100:
            complete.set()

    for number in range(100):
        over_grpc.client.async_infer(
            "identity",
            [over_grpc.input("INPUT0", ROWS + number)],
            lambda result, error, number=number: bring(number, result, error),
        )
    assert complete.wait(20)
    assert all(same(answers[number], ROWS + number) for number in range(100))


def test_many_requests_are_in_flight_over_http_at_once(libraries: Mapping[str, Library]) -> None:
    over_http = libraries["http"]
    pending = [
        over_http.client.async_infer("identity", [over_http.input("INPUT0", ROWS + number)])
        for number in range(100)
    ]
    answers = [request.get_result(timeout=20).as_numpy("OUTPUT0") for request in pending]
    assert all(same(answer, ROWS + number) for number, answer in enumerate(answers))


def test_a_cancelled_task_ends_at_once_and_is_not_computed(over_asyncio: Library, server: Child) -> None:
    inputs = [over_asyncio.input("x", np.array([[1, 2]], dtype=np.float32))]
    before = over_asyncio.success_count("patient")

    async def cancel() -> None:
        task = asyncio.create_task(over_asyncio.client.infer("patient", inputs))
        await asyncio.to_thread(until_waiting, server, "patient", 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 20)

    over_asyncio.runner.run(cancel())
    answer = over_asyncio.infer("patient", inputs)
    assert same(answer.as_numpy("y"), np.array([[2, 4]], dtype=np.float32))
    assert over_asyncio.success_count("patient") == before + 1


# what the server says of itself


# errors


def test_an_unknown_model_or_version_is_named(library: Library) -> None:
    for model, version, words in (
        ("nobody", "", "unknown model: 'nobody' is not found"),
        ("identity", "9", "unknown model: 'identity' version 9 is not found"),
    ):
        with pytest.raises(InferenceServerException, match=words) as refused:
            library.infer(model, [library.input("INPUT0", ROWS)], model_version=version)
        assert refused.value.status() == library.status("NOT_FOUND")


# many at once

THREADS, ROUNDS = 16, 40


def ask(library: Library, thread: int) -> int:
    """Questions that no other thread asks; the number of right answers."""
    right = 0
    for number in range(ROUNDS):
        first = np.full((1 + number % 3, 16), thread * 1000 + number, dtype=np.float32)
        second = np.full_like(first, number)
        inputs = [library.input("INPUT0", first), library.input("INPUT1", second)]
        answer = library.infer("add_sub", inputs, request_id=f"{thread}-{number}")
        echo = library.infer("identity", [library.input("INPUT0", first)])
        right += (
            same(answer.as_numpy("OUTPUT0"), first + second)
            and same(answer.as_numpy("OUTPUT1"), first - second)
            and same(echo.as_numpy("OUTPUT0"), first)
        )
    return right


def test_many_threads_get_their_own_answers_over_grpc(
    libraries: Mapping[str, Library], server: Child
) -> None:
    over_grpc = libraries["grpc"]
    with ThreadPoolExecutor(THREADS) as pool:
        right = list(pool.map(lambda thread: ask(over_grpc, thread), range(THREADS)))
    assert right == [ROUNDS] * THREADS
    assert server.err == []


def test_many_threads_get_their_own_answers_over_http(
    http_address: str, libraries: Mapping[str, Library], server: Child
) -> None:
    def work(thread: int) -> int:
        with tritonclient.http.InferenceServerClient(http_address) as client:
            return ask(replace(libraries["http"], client=client), thread)

    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(work, range(THREADS))) == [ROUNDS] * THREADS
    assert server.err == []


def test_many_tasks_get_their_own_answers(over_asyncio: Library) -> None:
    async def one(number: int) -> bool:
        rows = np.full((1 + number % 4, 16), number, dtype=np.float32)
        inputs = [over_asyncio.input("INPUT0", rows), over_asyncio.input("INPUT1", rows * 3)]
        answer = await over_asyncio.client.infer("add_sub", inputs)
        return same(answer.as_numpy("OUTPUT0"), rows * 4) and same(
            answer.as_numpy("OUTPUT1"), rows - rows * 3
        )

    async def many() -> bool:
        return all(await asyncio.gather(*[one(number) for number in range(300)]))

    assert over_asyncio.runner.run(many())
