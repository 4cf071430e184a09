"""Requests that the event loop computes as they come, past the scheduler: the same answers."""

import gzip
import http.client
import itertools
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
import pytest

from tests.e2e.child import FRONTENDS
from tests.serving.live import (
    SERVICE,
    Channel,
    Live,
    binary_request,
    floats,
    infer_message,
    outputs_of,
    post_request,
    serving,
)
from tests.serving.onnx_files import doubling, graph, node, value, write_model
from tests.waiting import eventually
from tpx.errors import Cancelled
from tpx.protocol import messages
from tpx.protocol.grpc.repeated import RepeatedCalls
from tpx.protocol.tensors import Buffer, Tensor
from tpx.protocol.v2 import DecodedRequest
from tpx.serving.frontends.inference import CachedHead, Replies
from tpx.serving.inference_plane import FastPath, RemoteResponse
from tpx.serving.request import InferRequest, RequestHead
from tpx.serving.tracing.flags import trace_flag

MANY = 40
"""Shapes are bound when they come for the second time, and models have to show that they are short."""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "double", doubling(2))
    write_model(repository, "batched", config="max_batch_size: 8 dynamic_batching {}")
    two = graph(
        [node("Add", ["a", "b"], ["sum"]), node("Sub", ["a", "b"], ["difference"])],
        [value("a", "FP32", 2), value("b", "FP32", 2)],
        [value("sum", "FP32", 2), value("difference", "FP32", 2)],
    )
    write_model(repository, "two", two)
    mode = {"model_control_mode": "explicit", "load_model": ("*",)}
    trace = tuple(map(trace_flag, (f"triton,file={repository}.json", "rate=1", "level=OFF")))
    with serving(repository, inline_below_us=10_000_000, trace_config=trace, **mode) as running:
        yield running


def vector(*values: float) -> npt.NDArray[np.float32]:
    """An FP32 array without a batch dimension."""
    return np.array(values, np.float32)


def computed_at_once(live: Live, model: str, *arrays: npt.NDArray[Any]) -> Sequence[bytes] | None:
    """What the fast path returns for inputs of "double" or "two", if it is open."""

    def compute() -> None:
        plane = live.server.plane
        names = ("a", "b") if model == "two" else ("x",)
        tensors = [Tensor.from_numpy(name, array) for name, array in zip(names, arrays, strict=True)]
        head = plane.bind(DecodedRequest(model_name=model, default_binary=True, inputs=tensors)).head
        short = None if head.converted else plane.fast_path(head)
        done.set_result(None if short is None else short.compute_one(b"".join(t.data for t in tensors)))

    done: Future[Sequence[bytes] | None] = Future()
    live.loop.call_soon_threadsafe(compute)
    return done.result(20)


def inferences(live: Live, model: str) -> tuple[int, int, int]:
    """How many requests have succeeded, and the rows and executions of a model."""
    [stats] = live.get(f"/v2/models/{model}/stats").json["model_stats"]
    return stats["inference_stats"]["success"]["count"], stats["inference_count"], stats["execution_count"]


def test_every_request_gets_the_answer_to_its_own_tensors(live: Live) -> None:
    before = inferences(live, "double")
    with live.channel() as channel:
        calls = [channel.infer("double", {"x": vector(n, 1)}) for n in range(MANY)]
    answers = [live.infer_binary("double", {"x": vector(n, 1)}) for n in range(MANY)]
    for number, (answer, call) in enumerate(zip(answers, calls, strict=True)):
        assert np.frombuffer(answer.tail, np.float32).tolist() == [2 * number, 2]
        assert outputs_of(call) == {"y": [2 * number, 2]}
        assert (call.model_name, call.model_version) == ("double", "1")
    assert {answer.status for answer in answers} == {200}
    assert len({answer.body[:100] for answer in answers}) == 1
    assert len({tuple(sorted(answer.headers)) for answer in answers}) == 1
    assert computed_at_once(live, "double", vector(3, 4)) == [vector(6, 8).tobytes()]
    after = inferences(live, "double")
    assert [b - a for a, b in zip(before, after, strict=True)] == [2 * MANY + 1] * 3


def test_tensors_of_several_inputs_and_outputs_keep_their_places(live: Live) -> None:
    for number in range(MANY):
        answer = live.infer_binary("two", {"a": vector(number, 5), "b": vector(1, 2)})
        assert np.frombuffer(answer.tail, np.float32).tolist() == [number + 1, 7, number - 1, 3]
    assert computed_at_once(live, "two", vector(5, 6), vector(1, 2)) == [
        vector(6, 8).tobytes(),
        vector(4, 4).tobytes(),
    ]


def gathered(live: Live, *arrays: npt.NDArray[Any], apart: int = 0) -> list[list[bytes] | None]:
    """Gather requests to "batched" in one iteration of the loop and return their outputs; None for those that
    took the regular path. The last `apart` requests have a head of their own.
    """

    def gather() -> None:
        plane = live.server.plane
        heads = [
            plane.bind(
                DecodedRequest(
                    model_name="batched",
                    default_binary=True,
                    inputs=[Tensor.from_numpy("x", arrays[0])],
                    parameters={"client": client},
                )
            ).head
            for client in ("one", "other")
        ]
        paths = [plane.fast_path(head) for head in heads]
        for index, array in enumerate(arrays):
            other = index >= len(arrays) - apart
            head, path = heads[other], paths[other]

            def reply(
                outputs: Sequence[bytes] | None,
                index: int = index,
                head: RequestHead = head,
                array: npt.NDArray[Any] = array,
            ) -> None:
                got[index] = None if outputs is None else list(outputs)
                if outputs is None:
                    plane.infer(InferRequest(head, [array.tobytes()], answered, None))
                else:
                    answered()

            assert path is not None
            if not path.gather(array.tobytes(), reply):
                reply(None)

    def answered(*_: object) -> None:
        left.pop()
        if not left:
            done.set_result(None)

    got: list[list[bytes] | None] = [None] * len(arrays)
    left = list(arrays)
    done: Future[None] = Future()
    live.loop.call_soon_threadsafe(gather)
    done.result(20)
    return got


def test_requests_that_arrive_together_are_computed_as_batches(live: Live) -> None:
    arrays = [floats([number, 1]) for number in range(19)]
    wanted = [[(2 * array).tobytes()] for array in arrays]
    eventually(lambda: gathered(live, *arrays) == wanted)
    before = inferences(live, "batched")
    assert gathered(live, *arrays) == wanted
    after = inferences(live, "batched")
    assert [b - a for a, b in zip(before, after, strict=True)] == [19, 19, 3]


def test_requests_with_different_heads_that_arrive_together_share_a_batch(live: Live) -> None:
    arrays = [floats([number, 1]) for number in range(4)]
    eventually(lambda: None not in gathered(live, *arrays))
    before = inferences(live, "batched")
    assert gathered(live, *arrays, apart=1) == [None] * 4
    after = inferences(live, "batched")
    assert [b - a for a, b in zip(before, after, strict=True)] == [4, 4, 1]


def test_requests_that_arrive_together_hold_up_others_for_a_limited_time(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are computed in several turns of the event loop, still in the order in which they came."""
    arrays = [floats([number, 1]) for number in range(64 * 8)]
    wanted = [[(2 * array).tobytes()] for array in arrays]
    eventually(lambda: gathered(live, *arrays[:8]) == wanted[:8])
    [served] = [served for served in live.server.plane.served() if served.name == "batched"]
    times_ns = itertools.count(0, 30_000)
    executions: list[int] = []

    def look() -> None:
        executions.append(served.statistics.execution_count)
        if not over:
            live.loop.call_soon(look)

    over: list[bool] = []
    for module in ("fast_path", "instances.bindings"):
        monkeypatch.setattr(f"tpx.serving.{module}._clock", lambda: next(times_ns))
    live.loop.call_soon_threadsafe(look)
    try:
        assert gathered(live, *arrays) == wanted
    finally:
        over.append(True)
    # an execution reads the clock four times
    assert max(b - a for a, b in itertools.pairwise(executions)) in range(15, 24)


class Waiting:
    """Implements Exchange: a request, and the outputs or the error that it was answered with."""

    def __init__(self) -> None:
        self.on_gone: Callable[[], None] | None = None
        self.answer: Future[list[bytes] | Exception] = Future()

    def leave(self) -> None:
        """What a connection does when its client leaves."""
        on_gone, self.on_gone = self.on_gone, None
        if on_gone is not None:
            on_gone()


class WaitingHead(CachedHead[Waiting, list[bytes]]):
    """A remembered head of requests that come from no connection."""

    def answer(self, exchange: Waiting, fast: FastPath, outputs: Sequence[Buffer]) -> None:
        exchange.answer.set_result([bytes(data) for data in outputs])

    def answered(self, context: Waiting, response: RemoteResponse, payload: Buffer) -> None:
        raise AssertionError("nothing is sent to another process")


def test_a_gathered_request_whose_client_left_is_cancelled_on_the_regular_path(live: Live) -> None:
    plane = live.server.plane
    [served] = [served for served in plane.served() if served.name == "batched"]
    cancelled = served.statistics.failures["CANCELED"]
    replies: Replies[Waiting, list[bytes]] = Replies(
        plane,
        lambda _, outputs, __: [bytes(tensor.data) for tensor in outputs],
        lambda waiting, outputs: waiting.answer.set_result(outputs),
        lambda waiting, error: waiting.answer.set_result(error),
        lambda waiting, error: waiting.answer.set_result(error),
    )
    data = floats([3, 1]).tobytes()

    def gather() -> None:
        """Send a request, whose client leaves, and one with another head, which ends the gathering."""
        heads = []
        for client in ("one", "other"):
            tensors = [Tensor.from_numpy("x", floats([3, 1]))]
            decoded = DecodedRequest(model_name="batched", default_binary=True, inputs=tensors)
            decoded.parameters["client"] = client
            heads.append(WaitingHead(plane.bind(decoded).head, replies, contiguous=True))
        began = heads[0].start(leaves, data)
        leaves.leave()
        if not heads[1].start(stays, data):
            replies.submit_late(stays, InferRequest(heads[1].head, [data], replies.reply, stays))
        done.set_result(began)

    eventually(lambda: None not in gathered(live, floats([3, 1])))
    leaves, stays, done = Waiting(), Waiting(), Future[bool]()
    stays.on_gone = lambda: None
    live.loop.call_soon_threadsafe(gather)
    assert done.result(20)
    assert isinstance(leaves.answer.result(20), Cancelled)
    assert stays.answer.result(20) == [floats([6, 2]).tobytes()]
    assert served.statistics.failures["CANCELED"] == cancelled + 1


def test_every_request_to_a_model_that_batches_gets_its_own_answer(live: Live) -> None:
    def over_http(number: int) -> float:
        answer = live.infer_binary("batched", {"x": floats([number, 1])})
        return float(np.frombuffer(answer.tail, np.float32)[0])

    with ThreadPoolExecutor(8) as clients, live.channel() as channel:
        assert list(clients.map(over_http, range(MANY))) == [2 * number for number in range(MANY)]
        infer = partial(channel.infer, "batched")
        answers = list(clients.map(infer, ({"x": floats([number, 1])} for number in range(MANY))))
    assert [outputs_of(answer)["y"] for answer in answers] == [[[2 * n, 2]] for n in range(MANY)]


def test_outputs_as_json_are_answered_as_before(live: Live) -> None:
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}
    for _ in range(MANY):
        assert live.infer("double", body).json["outputs"][0]["data"] == [2, 4]


def test_a_model_that_is_unloaded_refuses_and_another_that_is_loaded_answers(live: Live) -> None:
    request = infer_message("double", {"x": vector(3, 1)})
    with live.channel() as channel:
        for _ in range(MANY):
            channel.send("ModelInfer", request)
        assert live.infer_binary("double", {"x": vector(3, 1)}).status == 200
        assert live.http("POST", "/v2/repository/models/double/unload").status == 200
        assert live.infer_binary("double", {"x": vector(3, 1)}).status == 404
        assert channel.outcome("ModelInfer", request) != "OK"
        assert live.http("POST", "/v2/repository/models/double/load").status == 200
        assert live.infer_binary("double", {"x": vector(3, 1)}).status == 200
        assert channel.outcome("ModelInfer", request) == "OK"


def asked(connection: socket.socket, request: bytes) -> tuple[int, list[float]]:
    """Status and output of a request that is sent with one write."""
    connection.sendall(request)
    with http.client.HTTPResponse(connection) as response:
        response.begin()
        size, body = int(response.headers.get("Inference-Header-Content-Length", 0)), response.read()
        return response.status, np.frombuffer(body[size:], np.float32).tolist() if size else []


def test_requests_repeated_on_one_connection_get_their_own_answers_and_are_counted(live: Live) -> None:
    before = inferences(live, "double")
    with live.raw_http() as connection:
        for number in range(MANY):
            request = binary_request("double", {"x": vector(number, 1)})
            assert asked(connection, request) == (200, [2 * number, 2])
    after = inferences(live, "double")
    assert [b - a for a, b in zip(before, after, strict=True)] == [MANY] * 3


def test_compressed_requests_repeated_on_one_connection_get_their_own_answers(live: Live) -> None:
    with live.raw_http() as connection:
        for number in range(MANY):
            head, _, body = binary_request("double", {"x": vector(number % 7, 1)}).partition(b"\r\n\r\n")
            size = int(head.partition(b"Inference-Header-Content-Length: ")[2])
            packed = gzip.compress(body, mtime=0)
            lines = f"Inference-Header-Content-Length: {size}\r\nContent-Encoding: gzip\r\n"
            request = post_request("/v2/models/double/infer", packed, lines)
            assert asked(connection, request) == (200, [2 * (number % 7), 2])


def test_a_repeated_request_meets_the_version_that_serves_now(tmp_path: Path) -> None:
    write_model(tmp_path, "changes", doubling(2))
    request = binary_request("changes", {"x": vector(3, 1)})
    with (
        serving(tmp_path, inline_below_us=10_000_000, model_control_mode="explicit") as own,
        own.raw_http() as connection,
    ):

        def control(verb: str) -> None:
            assert own.http("POST", f"/v2/repository/models/changes/{verb}").status == 200

        control("load")
        assert [asked(connection, request) for _ in range(MANY)] == [(200, [6, 2])] * MANY
        control("unload")
        assert asked(connection, request)[0] == 404
        nothing = graph([node("Sub", ["x", "x"], ["y"])], [value("x", "FP32", 2)], [value("y", "FP32", 2)])
        write_model(tmp_path, "changes", nothing, version="2")
        control("load")
        assert [asked(connection, request) for _ in range(MANY)] == [(200, [0, 0])] * MANY


@pytest.fixture
def by_template(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many calls each read of this process brought that matched a template."""
    found: list[int] = []
    split = RepeatedCalls.split

    def count(template: RepeatedCalls, view: memoryview, stream: int) -> tuple[list[bytes], int, int]:
        calls = split(template, view, stream)
        found.append(len(calls[0]))
        return calls

    monkeypatch.setattr(RepeatedCalls, "split", count)
    return found


def repeating(channel: Channel, model: str) -> Callable[[npt.NDArray[np.float32]], Future[list[float]]]:
    """Calls without a deadline, which would differ from call to call."""
    infer = channel.raw.unary_unary(SERVICE + "ModelInfer", lambda data: data, _output)

    def begin(array: npt.NDArray[np.float32]) -> Future[list[float]]:
        call: Future[list[float]] = infer.future(infer_message(model, {"x": array}))
        return call

    return begin


def _output(message: bytes) -> list[float]:
    return list(np.ravel(outputs_of(messages.ModelInferResponse.FromString(message))["y"]))


def test_calls_that_arrive_together_get_their_own_answers(live: Live, by_template: list[int]) -> None:
    with live.channel() as channel:
        for model, first in (("double", vector), ("batched", lambda *values: floats([*values]))):
            by_template.clear()
            begin = repeating(channel, model)
            for _ in range(MANY):
                begin(first(1, 1)).result(20)
            before = inferences(live, model)
            calls = [begin(first(number, 1)) for number in range(200)]
            assert [call.result(20) for call in calls] == [[2 * number, 2] for number in range(200)]
            after = inferences(live, model)
            assert [b - a for a, b in zip(before, after, strict=True)][:2] == [200, 200]
            assert sum(by_template) > 0 or FRONTENDS


def test_calls_repeated_on_one_connection_get_their_own_answers(
    tmp_path: Path, by_template: list[int]
) -> None:
    """As over HTTP: counted, by the version that serves now, and traced if they have to be."""
    repository = tmp_path / "models"
    write_model(repository, "changes", doubling(2))
    trace = (trace_flag(f"triton,file={tmp_path}/trace"), trace_flag("level=OFF"), trace_flag("rate=1"))
    with (
        serving(
            repository,
            inline_below_us=10_000_000,
            model_control_mode="explicit",
            load_model=("changes",),
            trace_config=trace,
        ) as own,
        own.channel() as channel,
    ):
        begin = repeating(channel, "changes")

        def ask(number: int) -> list[float]:
            return begin(vector(number, 1)).result(20)

        assert [ask(n) for n in range(MANY)] == [[2 * n, 2] for n in range(MANY)]
        assert sum(by_template) > 0 or FRONTENDS
        assert inferences(own, "changes") == (MANY, MANY, MANY)
        settings = b'{"trace_level": ["TIMESTAMPS"], "log_frequency": "1"}'
        assert own.http("POST", "/v2/trace/setting", settings).status == 200
        assert [ask(n) for n in range(3)] == [[2 * n, 2] for n in range(3)]
        assert own.http("POST", "/v2/trace/setting", b'{"trace_level": ["OFF"]}').status == 200
        eventually(lambda: _traced(tmp_path / "trace") == 3)
        assert own.http("POST", "/v2/repository/models/changes/unload").status == 200
        with pytest.raises(grpc.RpcError, match="unknown model: 'changes'"):
            ask(1)
        nothing = graph([node("Sub", ["x", "x"], ["y"])], [value("x", "FP32", 2)], [value("y", "FP32", 2)])
        write_model(repository, "changes", nothing, version="2")
        assert own.http("POST", "/v2/repository/models/changes/load").status == 200
        assert [ask(n) for n in range(MANY)] == [[0, 0]] * MANY


def test_traced_requests_go_the_usual_way(live: Live) -> None:
    def infer(level: str, count: int) -> None:
        settings = f'{{"trace_level": ["{level}"], "log_frequency": "1"}}'
        assert live.http("POST", "/v2/trace/setting", settings.encode()).status == 200
        for _ in range(count):
            assert asked(connection, binary_request("double", {"x": vector(3, 1)})) == (200, [6, 2])

    with live.raw_http() as connection:
        infer("OFF", MANY)
        infer("TIMESTAMPS", 3)
        infer("OFF", 0)
    file = Path(live.server.tracer.setting().trace_file)
    eventually(lambda: _traced(file) == 3)


def _traced(file: Path) -> int:
    """How many computations the trace files have."""
    finished = [each for each in file.parent.glob(file.name + "*") if each.suffix != ".partial"]
    return sum(each.read_text().count("COMPUTE_START") for each in finished)
