"""Other instance groups of a model that serves: it goes on as it is, with more or fewer instances."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serving.onnx_files import accumulator, write_model
from tests.serving.repository.controlled import Scene, ask, controlled, write
from tests.serving.repository.test_table import fingerprint
from tpx.protocol.tensors import Tensor
from tpx.protocol.v2 import DecodedRequest
from tpx.serving.backends.contract import InstanceSpec, Needs
from tpx.serving.model import ServedModel, plan_regroup
from tpx.serving.repository.records import plan_load
from tpx.serving.request import InferRequest, InferResponse
from tpx.serving.scheduling.limiter import RateLimiter

ONE_THREAD = 'parameters { key: "intra_op_thread_count" value { string_value: "1" } } '


SUMS = """
control_input [
  { name: "START" control [{ kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }] },
  { name: "READY" control [{ kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 1 ] }] },
  { name: "CORRID" control [{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 }] }
]
state [{ input_name: "state_in" output_name: "state_out" data_type: TYPE_FP32 dims: [ 1 ] }]
"""
"""What the model `accumulator` is told and keeps."""


def threads(name: str = "net") -> list[str]:
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith(f"{name}_"))


def group(count: int, *more: str, rest: str = ONE_THREAD) -> str:
    """A config.pbtxt with one instance group of so many on the CPU, and others."""
    return f"{rest} instance_group [{', '.join([f'{{ count: {count} kind: KIND_CPU }}', *more])}]"


def configure(repository: Path, text: str) -> None:
    (repository / "net" / "config.pbtxt").write_text(text)


def served(it: Scene) -> ServedModel:
    model = it.repository.get("net")
    assert isinstance(model, ServedModel)
    return model


async def add(model: ServedModel, sequence: int, value: float, **flags: bool) -> float:
    """The sum of a sequence after one more request."""
    answers: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
    tensor = Tensor.from_numpy("x", np.full((1, 1), value, np.float32))
    decoded = DecodedRequest(model_name="net", inputs=[tensor], default_binary=True)
    decoded.parameters = {"sequence_id": sequence, **flags}
    request = InferRequest(
        model.bind(decoded), [tensor.data], lambda _, response: answers.set_result(response), None
    )
    model.submit(request)
    response = await answers
    if response.error is not None:
        raise response.error
    found = {output.name: output.numpy() for output in response.outputs}
    return float(found["y"][0, 0])


@contextmanager
def asked_all_the_time(it: Scene) -> Iterator[list[float]]:
    """A client that asks one request after the other; every one must be answered."""
    answers: list[float] = []

    async def go_on() -> None:
        while True:
            answers.append(await ask(it.repository.get("net")))
            await asyncio.sleep(0)

    task = asyncio.get_running_loop().create_task(go_on())
    yield answers
    assert not task.done() or task.exception() is None
    task.cancel()


async def test_other_instances_join_and_leave_the_model_that_serves(tmp_path: Path) -> None:
    write(tmp_path, 2)
    configure(tmp_path, group(1))
    async with controlled(tmp_path) as it:
        await it.load()
        before = it.repository.get("net")
        with asked_all_the_time(it) as answers:
            for count in (4, 2, 5, 1):
                configure(tmp_path, group(count))
                await it.load()
                assert len(threads()) == count  # the others have ended before the load is answered
                seen = len(answers)
                await it.until(lambda seen=seen: len(answers) > seen + 20)  # type: ignore[misc]
        assert it.repository.get("net") is before
        assert set(answers) == {2.0}
        assert before.statistics.inference_count >= len(answers)
        assert before.config.instance_group[0].count == 1


async def test_the_same_instances_load_nothing_and_another_model_file_loads_everything(
    tmp_path: Path,
) -> None:
    write(tmp_path, 2)
    configure(tmp_path, group(2))
    async with controlled(tmp_path) as it:
        await it.load()
        before = it.repository.get("net")
        configure(tmp_path, group(2) + " # a comment")
        await it.load()
        assert it.repository.get("net") is before
        write(tmp_path, 3)
        configure(tmp_path, group(3))
        await it.load()
        assert it.repository.get("net") is not before
        assert await it.factor() == 3


async def test_sessions_that_share_the_cores_among_them_are_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8))
    write(tmp_path, 2)
    configure(tmp_path, group(2, rest=""))
    async with controlled(tmp_path) as it:
        await it.load()
        before = it.repository.get("net")
        configure(tmp_path, group(4, rest=""))
        await it.load()
        assert it.repository.get("net") is not before


async def test_instances_that_fail_leave_the_model_as_it_was(tmp_path: Path) -> None:
    write(tmp_path, 2)
    configure(tmp_path, group(1))
    async with controlled(tmp_path) as it:
        await it.load()
        before, was = it.repository.get("net"), threads()
        configure(tmp_path, group(3, "{ count: 1 kind: KIND_GPU gpus: [0] }"))
        refusal = await it.refusal(it.load())
        assert "CUDAExecutionProvider" in refusal
        assert it.repository.get("net") is before
        assert threads() == was
        assert await it.factor() == 2
        assert before.config.instance_group[0].count == 1
        configure(tmp_path, group(2))
        await it.load()
        assert it.repository.get("net") is before
        assert len(threads()) == 2


async def test_a_version_that_fails_takes_the_new_instances_of_the_others_along(tmp_path: Path) -> None:
    every = "version_policy { all { } } "
    write(tmp_path, 2)
    configure(tmp_path, every + group(1))
    async with controlled(tmp_path) as it:
        await it.load()
        before, was = it.repository.get("net"), threads()
        configure(tmp_path, every + group(2))
        (tmp_path / "net" / "2").mkdir()
        (tmp_path / "net" / "2" / "model.onnx").write_bytes(b"not a model")
        await it.refusal(it.load())
        await it.until(lambda: threads() == was)
        assert it.repository.get("net", "1") is before
        assert await it.factor("1") == 2


async def test_instances_that_take_turns_join_and_leave(tmp_path: Path) -> None:
    limited = "rate_limiter { resources [{ name: 'R' count: 1 }] }"

    def text(count: int) -> str:
        return ONE_THREAD + f"instance_group [{{ count: {count} kind: KIND_CPU {limited} }}]"

    limiter = RateLimiter({})
    write(tmp_path, 2)
    configure(tmp_path, text(2))
    async with controlled(tmp_path, limiter=limiter) as it:
        await it.load()
        before = it.repository.get("net")
        with asked_all_the_time(it) as answers:
            for count in (3, 1, 2):
                configure(tmp_path, text(count))
                await it.load()
                seen = len(answers)
                await it.until(lambda seen=seen: len(answers) > seen + 20)  # type: ignore[misc]
                await it.until(lambda count=count: len(threads()) == count)  # type: ignore[misc]
        assert it.repository.get("net") is before
        assert len(limiter.admissions) == 2
    await asyncio.sleep(0)
    assert not limiter.admissions


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 1 }"])
async def test_sequences_go_on_where_they_are_while_instances_join_and_leave(
    tmp_path: Path, strategy: str
) -> None:
    rest = f"max_batch_size: 1 {ONE_THREAD} sequence_batching {{ {strategy} {SUMS} }} "
    write_model(tmp_path, "net", accumulator())
    configure(tmp_path, group(1, rest=rest))
    async with controlled(tmp_path) as it:
        await it.load()
        before = served(it)
        assert await add(before, 1, 10, sequence_start=True) == 10
        waiting = asyncio.create_task(add(before, 2, 20, sequence_start=True))
        await asyncio.sleep(0)
        configure(tmp_path, group(3, rest=rest))
        await it.load()
        assert await waiting == 20, "what waits for a slot has one of the new instances"
        assert await add(before, 3, 30, sequence_start=True) == 30
        configure(tmp_path, group(1, rest=rest))
        await it.load()
        assert len(threads()) == 3, "instances stay for their sequences"
        last = asyncio.create_task(add(before, 4, 40, sequence_start=True))
        for number in (3, 1):
            assert await add(before, number, 1) == 10 * number + 1
        assert await add(before, 2, 1, sequence_end=True) == 21
        await it.until(lambda: len(threads()) == 2 or last.done())
        assert await add(before, 3, 1, sequence_end=True) == 32
        assert await add(before, 1, 1, sequence_end=True) == 12
        assert await last == 40
        await it.until(lambda: len(threads()) == 1)
        assert await add(before, 4, 1, sequence_end=True) == 41
        assert served(it) is before
        assert before.config.instance_group[0].count == 1


@pytest.mark.parametrize("unloads", [True, False])
async def test_a_model_or_a_server_that_ends_takes_along_the_instances_that_stay_for_their_sequences(
    tmp_path: Path, unloads: bool
) -> None:
    idle = f"max_sequence_idle_microseconds: {10**12}"
    rest = f"max_batch_size: 1 {ONE_THREAD} sequence_batching {{ {idle} {SUMS} }} "
    write_model(tmp_path, "net", accumulator())
    configure(tmp_path, group(2, rest=rest))
    async with controlled(tmp_path) as it:
        await it.load()
        for number in (1, 2):
            await add(served(it), number, 1, sequence_start=True)
        configure(tmp_path, group(1, rest=rest))
        await it.load()
        assert len(threads()) == 2
        if unloads:
            await it.control.unload("net", unload_dependents=False)
            await it.until(lambda: not threads())
    assert not threads()


async def test_an_instance_leaves_when_the_last_of_its_sequences_was_idle_for_too_long(
    tmp_path: Path,
) -> None:
    idle = "max_sequence_idle_microseconds: 50000"
    rest = f"max_batch_size: 1 {ONE_THREAD} sequence_batching {{ {idle} {SUMS} }} "
    write_model(tmp_path, "net", accumulator())
    configure(tmp_path, group(2, rest=rest))
    async with controlled(tmp_path) as it:
        await it.load()
        for number in (1, 2):
            await add(served(it), number, 1, sequence_start=True)
        configure(tmp_path, group(1, rest=rest))
        await it.load()
        await it.until(lambda: len(threads()) == 1)


def spec(name: str, **fields: Any) -> InstanceSpec:
    return InstanceSpec(**{"name": name, "kind": "KIND_CPU", **fields})


def test_instances_that_are_alike_stay_whatever_they_are_called() -> None:
    add, end = plan_regroup([spec("a_0"), spec("a_1")], [spec("b_0"), spec("b_1"), spec("b_2")])
    assert (add, end) == ([spec("b_2")], [])
    add, end = plan_regroup([spec("a_0"), spec("a_1"), spec("a_2")], [spec("a_1")])
    assert (add, end) == ([], [spec("a_0"), spec("a_2")])


def test_instances_of_another_device_or_priority_are_others() -> None:
    gpu, soon = spec("a_0", kind="KIND_GPU", device_id=1), spec("a_0", needs=Needs(priority=2))
    for other in (gpu, soon):
        assert plan_regroup([spec("a_0")], [other]) == ([other], [spec("a_0")])


def test_a_version_whose_groups_alone_differ_is_kept_and_regrouped() -> None:
    wanted, serving = (
        {1: fingerprint(groups=b"two"), 2: fingerprint()},
        {1: fingerprint(groups=b"one"), 2: fingerprint()},
    )
    plan = plan_load(wanted, serving)
    assert (plan.load, plan.keep, plan.regroup, plan.unload) == ((), (1, 2), (1,), ())
    plan = plan_load(wanted, serving, lambda version: False)
    assert (plan.load, plan.keep, plan.regroup) == ((1,), (2,), ())
    plan = plan_load({1: fingerprint(groups=b"two", config=b"other")}, serving)
    assert (plan.load, plan.regroup, plan.unload) == ((1,), (), (2,))
