"""Requests of frontends that the engine computes without scheduler and dispatcher: the same answers."""

import asyncio
import gc
import itertools
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serving.onnx_files import doubling, graph, node, value, write_model
from tests.serving.shared_memory.segments import segment
from tests.waiting import until
from tpx.errors import NotReady, TpxError
from tpx.options import build
from tpx.protocol.tensors import Buffer, Tensor
from tpx.protocol.v2 import DecodedRequest, RequestedOutput, SharedMemoryRange
from tpx.serving.inference_plane import RemotePath, RemoteResponse
from tpx.serving.logs import LogControl
from tpx.serving.options import ServeConfig
from tpx.serving.processes.channel import FrameChannel
from tpx.serving.processes.remote import RemotePlane
from tpx.serving.processes.supervisor import EngineSpec
from tpx.serving.request import InferRequest, InferResponse, RequestHead
from tpx.serving.server import InferenceServer
from tpx.serving.shared_memory.regions import SystemRegion
from tpx.serving.transport.memory import reserve_memory


@dataclass(slots=True)
class _Linked:
    """A frontend's plane and the engine that it asks, in one process."""

    server: InferenceServer
    plane: RemotePlane
    channel: FrameChannel
    gone: Callable[[], None]
    """Ends the connection to the engine."""

    async def known(self, model: str) -> None:
        done = asyncio.Event()
        failed: list[TpxError] = []
        self.plane.ask(model, "", done.set, failed.append)
        await done.wait()
        assert not failed

    async def infer(self, model: str, rows: Sequence[Any], name: str = "x") -> list[Any]:
        """Send requests together; return the outputs of each."""
        answers: dict[int, InferResponse] = {}
        for index, values in enumerate(rows):
            array = np.array(values, np.float32)
            decoded = DecodedRequest(
                model_name=model, default_binary=True, inputs=[Tensor.from_numpy(name, array)]
            )
            head = self.plane.bind(decoded).head

            def keep(_: InferRequest, response: InferResponse, index: int = index) -> None:
                answers[index] = response

            self.plane.infer(InferRequest(head, [decoded.inputs[0].data], keep, None))
        await until(lambda: len(answers) == len(rows))
        assert not any(answer.error for answer in answers.values())
        return [[t.numpy().tolist() for t in answers[index].outputs] for index in range(len(rows))]

    def statistics(self, model: str) -> Any:
        return self.server.repository.get(model, "").statistics


def _fail(error: Exception | None) -> None:
    if error is not None:
        raise error


@asynccontextmanager
async def _serve(repository: Path, **options: object) -> AsyncIterator[_Linked]:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind("")
    listening.listen()
    started, says_started = os.pipe()
    ports = {"allow_http": False, "allow_grpc": False, "allow_metrics": False}
    mode = {"model_control_mode": "explicit", "load_model": ("*",)}
    config = build(
        ServeConfig, {"model_repository": (repository,), "frontends": 1, **mode, **ports, **options}
    )
    spec = EngineSpec(listening=listening, count=0, bound=(), metrics=(), started=says_started)
    server = InferenceServer(config, None, spec)
    await server.start()
    plane = RemotePlane(LogControl(config.logging.settings), 1000)
    welcome = asyncio.Event()
    plane.on_state = lambda _: welcome.set()
    sock = socket.socket(socket.AF_UNIX)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, listening.getsockname())
    (to_frontend, theirs), (to_engine, own) = reserve_memory(), reserve_memory()
    socket.send_fds(sock, [b"\0"], [to_frontend, to_engine])
    os.close(to_frontend)
    os.close(to_engine)
    channel = FrameChannel(sock, (own, theirs), plane.on_frames, _fail, eager=True)
    await welcome.wait()
    plane.use(channel)
    try:
        yield _Linked(server, plane, channel, channel.close)
    finally:
        channel.close()
        await server.stop()
        listening.close()
        plane.offload.close()
        os.close(started)
        os.close(says_started)


ROUNDS = 12
"""Shapes are bound when they come for the second time, and only short executions are computed at once."""


@pytest.mark.slow
def test_requests_that_come_together_get_their_own_answers(tmp_path: Path) -> None:
    write_model(tmp_path, "double", doubling("batch", "n"), "max_batch_size: 4 dynamic_batching {}")

    async def run() -> None:
        async with _serve(tmp_path) as linked:
            await linked.known("double")
            asked = 0
            for turn in range(ROUNDS):
                for count in (1, 3, 4, 11):
                    rows = [[[turn, number]] for number in range(count)]
                    wanted = [[[[2 * turn, 2 * number]]] for number in range(count)]
                    assert await linked.infer("double", rows) == wanted
                    asked += count
            statistics = linked.statistics("double")
            sizes = statistics.batches
            assert statistics.inference_count == asked == sum(n * each.count for n, each in sizes.items())
            assert statistics.execution_count == sum(each.count for each in sizes.values()) < asked
            assert max(sizes) == 4
            durations = statistics.durations()
            assert durations["success"].count == asked
            phases = ("queue", "compute_input", "compute_infer", "compute_output")
            assert durations["success"].ns >= sum(durations[phase].ns for phase in phases)

    asyncio.run(run())


def test_requests_of_several_rows_and_of_other_models_are_not_mixed(tmp_path: Path) -> None:
    write_model(tmp_path, "double", doubling("batch", "n"), "max_batch_size: 8 dynamic_batching {}")
    write_model(tmp_path, "plain", doubling("batch", "n"), "max_batch_size: 8")

    async def run() -> None:
        async with _serve(tmp_path) as linked:
            await linked.known("double")
            await linked.known("plain")
            for turn in range(ROUNDS):
                rows = [[[turn, k], [k, 1]] if k % 2 else [[turn, k, k]] for k in range(9)]
                wanted = [[(2 * np.array(each)).tolist()] for each in rows]
                answers = await asyncio.gather(linked.infer("double", rows), linked.infer("plain", rows))
                assert list(answers) == [wanted, wanted]
            assert linked.statistics("plain").inference_count == ROUNDS * (5 + 4 * 2)

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "reading_ns"), [({}, 30_000), ({"metrics_config": ("histogram_latencies=true",)}, 100_000)]
)
def test_frames_that_are_alike_hold_up_others_for_a_limited_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], reading_ns: int
) -> None:
    """They are computed in several turns of the event loop, with the fast path and (histograms) without."""
    write_model(tmp_path, "double", doubling(1), "")
    times_ns = itertools.count(0, reading_ns)
    rows = [[number] for number in range(64)]
    wanted = [[[2 * number]] for number in range(64)]
    counts: list[int] = []

    async def run() -> None:
        async with _serve(tmp_path, inline_below_us=10_000_000, **options) as linked:
            await linked.known("double")
            for _ in range(ROUNDS):
                assert await linked.infer("double", rows) == wanted
            bound = () if options else ("instances.bindings",)
            for module in ("fast_path", "processes.peer", *bound):
                monkeypatch.setattr(f"tpx.serving.{module}._clock", lambda: next(times_ns))
            asking = asyncio.create_task(linked.infer("double", rows))
            while not asking.done():
                counts.append(linked.statistics("double").execution_count)
                await asyncio.sleep(0)
            assert asking.result() == wanted

    asyncio.run(run())
    assert max(b - a for a, b in itertools.pairwise(counts)) in range(15, 24)


def test_all_outputs_of_a_model_are_answered(tmp_path: Path) -> None:
    nodes = [node("Add", ["x", "x"], ["y"]), node("ReduceSum", ["x"], ["z"], keepdims=1)]
    model = graph(
        nodes, [value("x", "FP32", "batch", 2)], [value("y", "FP32", "batch", 2), value("z", "FP32", 1, 1)]
    )
    write_model(tmp_path, "two", model, "max_batch_size: 0")

    async def run() -> None:
        async with _serve(tmp_path) as linked:
            await linked.known("two")
            for turn in range(ROUNDS):
                rows = [[[turn, k], [k, 1]] for k in range(5)]
                wanted = [[(2 * np.array(each)).tolist(), [[turn + 2 * each[0][1] + 1]]] for each in rows]
                assert await linked.infer("two", rows) == wanted

    asyncio.run(run())


def test_a_model_that_was_loaded_anew_answers(tmp_path: Path) -> None:
    write_model(tmp_path, "double", doubling("batch", "n"), "max_batch_size: 4")

    async def run() -> None:
        async with _serve(tmp_path) as linked:
            await linked.known("double")
            for _ in range(ROUNDS):
                assert await linked.infer("double", [[[1, 2]]]) == [[[[2, 4]]]]
            write_model(tmp_path, "double", negating(), "max_batch_size: 4")
            await linked.server.control.load("double", None)
            await linked.known("double")
            for _ in range(ROUNDS):
                assert await linked.infer("double", [[[1, 2]]]) == [[[[-1, -2]]]]

    asyncio.run(run())


class _Answers:
    """Implements RemoteAnswers: `context` is a name, and the answers are kept by it."""

    def __init__(self, head: RequestHead) -> None:
        self._head = head
        self.quick: dict[str, list[list[float]] | str] = {}
        self.regular: dict[str, InferResponse] = {}

    def answered(self, context: str, response: RemoteResponse, payload: Buffer) -> None:
        [tensor] = response.tensors(payload)
        self.quick[context] = tensor.numpy().tolist() if tensor.data else "nothing"

    def request(self, context: str) -> InferRequest:
        def keep(_: InferRequest, response: InferResponse) -> None:
            self.regular[context] = response

        return InferRequest(self._head, [], keep, None)


@asynccontextmanager
async def _remote_path(directory: Path) -> AsyncIterator[tuple[_Linked, RemotePath, _Answers]]:
    """Yield the remote path to the model `double` of requests with two numbers, once it has a template."""
    write_model(directory, "double", doubling("batch", "n"), "max_batch_size: 4")
    async with _serve(directory) as linked:
        await linked.known("double")
        tensor = Tensor.from_numpy("x", np.zeros((1, 2), np.float32))
        head = linked.plane.bind(
            DecodedRequest(model_name="double", default_binary=True, inputs=[tensor])
        ).head
        path = linked.plane.remote_path(head)
        assert path is not None
        linked.plane.infer(InferRequest(head, [tensor.data], lambda *_: None, None))
        await until(lambda: not linked.plane.in_flight)
        yield linked, path, _Answers(head)


@asynccontextmanager
async def _shared_path(
    directory: Path, file: Path, **output: SharedMemoryRange
) -> AsyncIterator[tuple[_Linked, RemotePath, _Answers]]:
    """Yield the remote path of requests whose input is in the region `r`, the first 16 bytes of `file`."""
    write_model(directory, "double", doubling("batch", "n"), "max_batch_size: 4")
    async with _serve(directory) as linked:
        await linked.known("double")
        _register(linked, file)
        tensor = Tensor("x", "FP32", (1, 2), b"")
        asked = DecodedRequest(model_name="double", default_binary=True, inputs=[tensor])
        asked.shared_inputs = [(tensor, SharedMemoryRange(region="r", offset=0, byte_size=8))]
        asked.outputs = [RequestedOutput(name=name, shared_memory=place) for name, place in output.items()]
        head = linked.plane.bind(asked).head
        path = linked.plane.remote_path(head)
        assert path is not None
        linked.plane.infer(InferRequest(head, [tensor.data], lambda *_: None, None))
        await until(lambda: not linked.plane.in_flight)
        yield linked, path, _Answers(head)


def _register(linked: _Linked, file: Path) -> None:
    region = SystemRegion(name="r", key=file.name, offset=0, byte_size=16)
    linked.server.plane.shared_memory.register_system(region)


def _floats(*values: float) -> bytes:
    return np.array(values, np.float32).tobytes()


def test_a_response_describes_a_model_that_changed_while_the_request_was_on_its_way(tmp_path: Path) -> None:
    write_model(tmp_path, "double", doubling("batch", "n"), "max_batch_size: 4")

    async def run() -> None:
        async with _serve(tmp_path) as linked:
            await linked.known("double")
            array = np.array([[1, 2]], np.float32)
            decoded = DecodedRequest(model_name="double", inputs=[Tensor.from_numpy("x", array)])
            answers: list[tuple[RequestHead, InferResponse]] = []
            bound = linked.plane.bind(decoded).head
            infer = InferRequest(
                bound,
                [decoded.inputs[0].data],
                lambda infer, response: answers.append((infer.head, response)),
                None,
            )
            linked.server.repository.generation += 1
            linked.plane.infer(infer)
            await until(lambda: bool(answers))
            [(head, response)] = answers
            assert head is not bound
            assert (head.model.name, head.model.version, head.model.max_batch_size) == ("double", 1, 4)
            assert [(each.spec.name, each.binary) for each in head.outputs] == [("y", False)]
            assert response.outputs[0].numpy().tolist() == [[2, 4]]

    asyncio.run(run())


def test_a_request_on_the_remote_path_is_answered_without_a_request_object(tmp_path: Path) -> None:
    async def run() -> None:
        async with _remote_path(tmp_path) as (linked, path, answers):
            for turn in range(ROUNDS):
                assert path.send(_floats(turn, 1), answers, f"a{turn}") is not None
                assert path.send(_floats(turn, 2), answers, f"b{turn}") is not None
                await until(lambda: not linked.plane.in_flight)
            assert answers.quick == {
                f"{name}{turn}": [[2 * turn, 2 * number]]
                for turn in range(ROUNDS)
                for name, number in (("a", 1), ("b", 2))
            }
            assert path.send(_floats(1, 2, 3), answers, "longer") is None

    asyncio.run(run())


def test_a_request_on_the_remote_path_of_a_model_that_has_gone_gets_an_error(tmp_path: Path) -> None:
    async def run() -> None:
        async with _remote_path(tmp_path) as (linked, path, answers):
            await linked.server.control.unload("double", unload_dependents=False)
            assert path.send(_floats(1, 2), answers, "late") is not None
            await until(lambda: bool(answers.regular))
            assert "double" in str(answers.regular["late"].error)
            assert not answers.quick

    asyncio.run(run())


def test_a_request_on_the_remote_path_is_answered_by_a_model_loaded_meanwhile(tmp_path: Path) -> None:
    async def run() -> None:
        async with _remote_path(tmp_path) as (linked, path, answers):
            for turn in range(ROUNDS):
                path.send(_floats(1, 2), answers, f"{turn}")
                write_model(tmp_path, "double", negating(), "max_batch_size: 4")
                await linked.server.control.load("double", None)
                path.send(_floats(1, 2), answers, f"{turn}, anew")
                await until(lambda: not linked.plane.in_flight)
            found = {name: response.outputs[0].numpy().tolist() for name, response in answers.regular.items()}
            assert {**found, **answers.quick} == {
                **{f"{turn}": [[-1, -2]] for turn in range(1, ROUNDS)},
                **{f"{turn}, anew": [[-1, -2]] for turn in range(ROUNDS)},
                "0": [[2, 4]],
            }

    asyncio.run(run())


def test_requests_on_the_remote_path_fail_with_their_engine(tmp_path: Path) -> None:
    async def run() -> None:
        async with _remote_path(tmp_path) as (linked, path, answers):
            path.send(_floats(1, 2), answers, "sent")
            linked.plane.lose()
            assert isinstance(answers.regular["sent"].error, NotReady)
            assert path.send(_floats(1, 2), answers, "more") is None

    asyncio.run(run())


def test_a_request_in_shared_memory_takes_the_remote_path_and_is_read_anew(tmp_path: Path) -> None:
    async def run() -> None:
        with segment(16) as file:
            async with _shared_path(tmp_path, file) as (linked, path, answers):
                for turn in range(ROUNDS):
                    file.write_bytes(_floats(turn, 1, 0, 0))
                    assert path.send(b"", answers, f"{turn}") is not None
                    await until(lambda: not linked.plane.in_flight)
                assert answers.quick == {f"{turn}": [[2 * turn, 2]] for turn in range(ROUNDS)}
                assert path.send(_floats(1, 2), answers, "with a body") is None

    asyncio.run(run())


def test_the_output_of_a_request_on_the_remote_path_goes_to_its_region(tmp_path: Path) -> None:
    async def run() -> None:
        place = SharedMemoryRange(region="r", offset=8, byte_size=8)
        with segment(16) as file:
            async with _shared_path(tmp_path, file, y=place) as (linked, path, answers):
                for turn in range(ROUNDS):
                    file.write_bytes(_floats(turn, 1, 0, 0))
                    path.send(b"", answers, f"{turn}")
                    await until(lambda: not linked.plane.in_flight)
                    assert file.read_bytes() == _floats(turn, 1, 2 * turn, 2)
                assert answers.quick == {f"{turn}": "nothing" for turn in range(ROUNDS)}

    asyncio.run(run())


def test_a_request_on_the_remote_path_sees_that_its_region_is_another_one(tmp_path: Path) -> None:
    async def run() -> None:
        with segment(16, _floats(1, 2)) as file, segment(16, _floats(3, 4)) as other:
            async with _shared_path(tmp_path, file) as (linked, path, answers):
                for name, registered in (("first", None), ("gone", None), ("other", other)):
                    if name != "first":
                        linked.server.plane.shared_memory.unregister("", SystemRegion)
                    if registered is not None:
                        _register(linked, registered)
                    path.send(b"", answers, name)
                    await until(lambda: not linked.plane.in_flight)
                assert "Unable to find shared memory region: 'r'" in str(answers.regular["gone"].error)
                assert answers.quick == {"first": [[2, 4]], "other": [[6, 8]]}

    asyncio.run(run())


def test_the_memory_of_a_frontend_that_has_gone_is_given_back_at_once(tmp_path: Path) -> None:
    write_model(tmp_path, "double", doubling("batch", "n"), "max_batch_size: 4")

    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("memfd:tpx-transport")

    async def run() -> None:
        gc.collect()
        before = mapped()
        gc.disable()
        try:
            async with _serve(tmp_path) as linked:
                await linked.known("double")
                for _ in range(ROUNDS):
                    await linked.infer("double", [[[1, 2]], [[1] * 100_000]])
                assert mapped() == before + 4
                linked.gone()
                await until(lambda: mapped() <= before + 2)
        finally:
            gc.enable()

    asyncio.run(run())


def negating() -> Any:
    """y = -x."""
    return graph(
        [node("Neg", ["x"], ["y"])], [value("x", "FP32", "batch", "n")], [value("y", "FP32", "batch", "n")]
    )
