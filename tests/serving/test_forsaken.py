"""Requests whose clients have left while they waited: their tensors go at once, not when it is their turn."""

import asyncio
import gc
import gzip
import json
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serving.backends.python.conftest import SAY
from tests.serving.backends.python.zoo import STRING, add, io
from tests.serving.engine import Client, batcher, closed_gate, entered, serving
from tests.serving.fakes import FakeModel, decoded
from tests.serving.live import SERVICE, Live, infer_message, post_request, reset
from tests.serving.live import serving as serving_live
from tests.serving.test_disconnects import counters
from tests.serving.test_dispatcher import accumulate, sequential
from tests.waiting import eventually, until
from tpx.protocol.grpc.server_call import ServerCall
from tpx.protocol.http1.request import HttpRequest
from tpx.serving.backends.contract import Needs
from tpx.serving.request import InferRequest, InferResponse
from tpx.serving.scheduling.direct import DirectScheduler
from tpx.serving.scheduling.dynamic import DynamicBatcher
from tpx.serving.scheduling.limiter import RateLimiter
from tpx.serving.scheduling.queue import QueuePolicies

MANY = 60
IN_HAND = 9
"""Requests at most that are with the only instance, or on their way to it, before the others."""
PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "no batching": lambda: {"scheduler": DirectScheduler()},
    "dynamic": lambda: {"scheduler": batcher()},
    "dynamic, answers in order": lambda: {"scheduler": batcher(), "preserve_ordering": True},
    "dynamic with levels": lambda: {
        "scheduler": DynamicBatcher(8, (), 0, QueuePolicies(levels=2, default_level=1))
    },
    "sequences, direct": lambda: sequential(2, oldest=False),
    "sequences, oldest": lambda: sequential(2, oldest=True),
    "taking turns": lambda: {
        "scheduler": DirectScheduler(),
        "limiter": RateLimiter({("r", 0): 1}),
        "needs": Needs(resources={("r", 0): 1}),
    },
}


class Waiting:
    """Requests that wait for a model that is busy, and whether their tensors are still held."""

    def __init__(self, client: Client) -> None:
        self._model = client.model
        self._payloads: list[weakref.ref[Any]] = []
        self.errors: list[str] = []

    def send(self, number: int) -> InferRequest:
        payload = np.full((1, 2), number, np.float32)
        ids = {"sequence_id": number, "sequence_start": True, "sequence_end": True}
        asked = decoded([[0, 0]], parameters=ids)
        request = InferRequest(self._model.bind(asked), [payload.data.cast("B")], self._reply, None)
        self._model.submit(request)
        self._payloads.append(weakref.ref(payload))
        return request

    @property
    def held(self) -> int:
        return sum(payload() is not None for payload in self._payloads)

    def _reply(self, request: InferRequest, response: InferResponse) -> None:
        self.errors.append("" if response.error is None else response.error.message)


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
async def test_what_nobody_waits_for_is_not_held_while_the_only_instance_is_busy(
    parts: Callable[[], dict[str, Any]],
) -> None:
    fake = FakeModel(lambda inputs: accumulate({"s_in": inputs["x"], **inputs}), gate=closed_gate())
    async with serving(fake, **parts()) as client:
        waiting = Waiting(client)
        stay = [waiting.send(1)]
        await entered(fake)
        stay += [waiting.send(number) for number in range(2, 2 + IN_HAND)]
        left = [waiting.send(number) for number in range(100, 100 + MANY)]
        assert waiting.held == len(stay) + MANY
        while left:
            left.pop().cancel()
        await until(lambda: client.model.statistics.failures["CANCELED"] == MANY)
        assert waiting.errors == ["the request was cancelled"] * MANY
        assert waiting.held == client.model.in_flight == len(stay)
        fake.release(1000)
        await until(lambda: client.model.in_flight == 0)
        assert waiting.errors[MANY:] == [""] * len(stay)
        assert client.model.statistics.durations()["success"].count == len(stay)
        assert client.model.statistics.durations()["fail"].count == MANY


# clients of a server whose model waits for one of them to leave


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository = tmp_path_factory.mktemp("models")
    add(repository, "say", config=SAY)
    (repository / "whole" / "1").mkdir(parents=True)
    (repository / "whole" / "config.pbtxt").write_text(
        "platform: 'ensemble' "
        + io({"say": STRING}, {"said": STRING})
        + """ensemble_scheduling { step [ { model_name: 'say' model_version: -1
  input_map { key: 'say' value: 'say' } output_map { key: 'said' value: 'said' } } ] }""",
        encoding="utf-8",
    )
    with serving_live(repository) as running:
        yield running


def message(model: str, words: str) -> bytes:
    return infer_message(model, {"say": np.array([words.encode()], np.object_)})


@contextmanager
def over_http(live: Live, model: str, count: int) -> Iterator[None]:
    """So many requests, of clients that leave in the end."""
    tensor = {"name": "say", "datatype": "BYTES", "shape": [1], "data": ["pid" + " " * 100_000]}
    body = {"inputs": [tensor]}
    connections = [live.begin(f"/v2/models/{model}/infer", body) for _ in range(count)]
    yield
    for connection in connections:
        reset(connection)


@contextmanager
def over_grpc(live: Live, model: str, count: int) -> Iterator[None]:
    """The same."""
    with live.raw_grpc() as channel:
        call = channel.unary_unary(SERVICE + "ModelInfer", None, None)
        calls = [call.future(message(model, "pid")) for _ in range(count)]
        yield
        for each in calls:
            each.cancel()


@contextmanager
def over_a_stream(live: Live, model: str, count: int) -> Iterator[None]:
    """The same, of one client."""
    with live.raw_grpc() as channel:
        call = channel.stream_stream(SERVICE + "ModelStreamInfer", None, None)
        stream = call(message(model, "pid") for _ in range(count))
        yield
        stream.cancel()


def kept() -> int:
    """Requests of any kind in this process, the tests' own excluded."""
    kinds = (InferRequest, HttpRequest, ServerCall)
    return sum(isinstance(each, kinds) for each in gc.get_objects())


@pytest.mark.parametrize("model", ["say", "whole"])
@pytest.mark.parametrize("clients", [over_http, over_grpc, over_a_stream])
def test_clients_that_leave_take_their_requests_along_while_a_model_computes_for_another(
    live: Live, model: str, clients: Callable[[Live, str, int], AbstractContextManager[None]], tmp_path: Path
) -> None:
    with live.raw_grpc() as channel:
        call = channel.unary_unary(SERVICE + "ModelInfer", None, None)
        computed, _, _ = counters(live, "say")
        occupant = call.future(message("say", f"cancelled {tmp_path / 'noticed'}"))
        eventually(lambda: counters(live, "say")[2] == 1)
        before = kept()
        _, cancelled, _ = counters(live, model)
        with clients(live, model, MANY):
            eventually(lambda: counters(live, "say")[2] == 1 + MANY)
            assert kept() >= before + MANY
        in_hand = 2  # with the process, or on their way to it
        eventually(lambda: counters(live, "say")[2] <= 1 + in_hand)
        eventually(lambda: kept() <= before + 3 * in_hand)
        eventually(lambda: counters(live, model)[1] >= cancelled + MANY - in_hand)
        assert counters(live, "say")[0] == computed, "the model was to compute all the time"
        occupant.cancel()
    eventually(lambda: counters(live, "say")[2] == 0)


@contextmanager
def no_thread_is_free(live: Live) -> Iterator[None]:
    """Whatever the event loop leaves to threads waits."""
    loop, free = live.loop, threading.Event()

    async def occupy() -> None:
        for _ in range(64):
            loop.run_in_executor(None, free.wait, 20)

    asyncio.run_coroutine_threadsafe(occupy(), loop).result(5)
    try:
        yield
    finally:
        free.set()


def test_a_body_that_waits_to_be_inflated_goes_with_its_client(live: Live) -> None:
    tensor = {"name": "say", "datatype": "BYTES", "shape": [1], "data": ["pid" + " " * 1_000_000]}
    body = gzip.compress(json.dumps({"inputs": [tensor]}).encode())
    request = post_request("/v2/models/say/infer", body, "Content-Encoding: gzip\r\n")
    before = kept()
    with no_thread_is_free(live):
        connections = [live.raw_http() for _ in range(MANY)]
        for connection in connections:
            connection.sendall(request)
        eventually(lambda: kept() >= before + MANY)
        assert live.get("/v2/models/say/ready").status == 200
        for connection in connections[1:]:
            reset(connection)
        eventually(lambda: kept() <= before + MANY // 10, timeout_s=60)
    with connections[0] as stays:
        assert stays.recv(100).startswith(b"HTTP/1.1 200 OK")
