"""Bindings that are kept for short models: the same answers, and no more memory than their bound."""

from pathlib import Path
from typing import Any, cast

import numpy as np

from tests.serving.backends.onnxruntime.opening import config, executors
from tests.serving.onnx_files import doubling, graph, node, save, value
from tests.serving.stacking.stacks import request
from tpx.serving.backends.contract import Arrays, Binding, Binds
from tpx.serving.batch import Batch
from tpx.serving.instances.bindings import BindingCache
from tpx.serving.instances.thread import BatchWork
from tpx.serving.stacking.plain import PlainStacking

TENSORS = (
    "input { name: 'x' data_type: TYPE_FP32 dims: -1 } output { name: 'y' data_type: TYPE_FP32 dims: -1 }"
)
FOUND = (
    "input { name: 'x' data_type: TYPE_FP32 dims: -1 } "
    "output { name: 'y' data_type: TYPE_INT64 dims: [1, -1] }"
)


class CountingBinds:
    """Implements Executor and Binds with another executor, and counts the runs of either kind."""

    def __init__(self, executor: Any) -> None:
        self._executor = executor
        self.executed = self.bound = 0

    def execute(self, inputs: Arrays) -> Arrays:
        self.executed += 1
        arrays: Arrays = self._executor.execute(inputs)
        return arrays

    def bind(self, inputs: Arrays, outputs: Arrays) -> Binding | None:
        self.bound += 1
        return cast("Binding | None", self._executor.bind(inputs, outputs))

    def close(self) -> None:
        self._executor.close()


class Scene:
    """The work of one instance, whose model takes rows of any length."""

    def __init__(self, model: Any, directory: Path, tensors: str = TENSORS, *, rows: bool = True) -> None:
        save(model, directory / "model.onnx")
        text = f"max_batch_size: {4 if rows else 0} {tensors}"
        [executor] = executors(directory, text)
        assert isinstance(executor, Binds)
        self.executor = CountingBinds(executor)
        self.config = config(text)
        self.work = BatchWork(
            "net_0",
            self.executor,
            PlainStacking(batched=rows),
            BindingCache(self.executor, batched=rows),
        )

    def answers(self, *inputs: Any) -> list[Any]:
        """Return the output of each request of one batch."""
        arrays = [np.array(each, np.float32) for each in inputs]
        batch = Batch([request(self.config, {"x": array}) for array in arrays])
        self.work.compute(batch)
        assert batch.error is None
        assert batch.started_ns <= batch.gathered_ns <= batch.computed_ns <= batch.ended_ns
        return [response.outputs[0].numpy().tolist() for response in batch.responses]


def test_shapes_that_come_again_are_computed_on_kept_memory(tmp_path: Path) -> None:
    scene = Scene(doubling("batch", "width"), tmp_path)
    earlier = [scene.answers([[n, 1]]) for n in range(5)]
    assert earlier == [[[[2 * n, 2]]] for n in range(5)]
    assert scene.executor.executed == 2
    assert [scene.answers([[n, 1]], [[n, 2], [n, 3]]) for n in range(5)] == [
        [[[2 * n, 2]], [[2 * n, 4], [2 * n, 6]]] for n in range(5)
    ]
    assert scene.executor.executed == 4


def test_an_answer_does_not_change_when_the_next_one_is_computed(tmp_path: Path) -> None:
    scene = Scene(doubling("batch", "width"), tmp_path)
    for _ in range(3):
        scene.answers([[0, 0]])
    batch = Batch([request(scene.config, {"x": np.ones((1, 2), np.float32)})])
    scene.work.compute(batch)
    scene.answers([[7, 7]])
    assert batch.responses[0].outputs[0].numpy().tolist() == [[2, 2]]


def test_outputs_of_other_shapes_than_before_are_computed_without_the_binding(tmp_path: Path) -> None:
    model = graph(
        [node("NonZero", ["x"], ["y"])], [value("x", "FP32", "width")], [value("y", "INT64", 1, "found")]
    )
    scene = Scene(model, tmp_path, FOUND, rows=False)
    for _ in range(3):
        assert scene.answers([1, 0, 1]) == [[[0, 2]]]
    assert scene.answers([1, 1, 1]) == [[[0, 1, 2]]]
    assert scene.answers([0, 0, 1]) == [[[2]]]


def test_an_output_that_the_runtime_would_not_fill_is_not_bound(tmp_path: Path) -> None:
    save(
        graph(
            [node("Relu", ["x"], ["y"])],
            [value("x", "FP32", "batch", 2)],
            [value("y", "FP32", "batch", 2), value("x", "FP32", "batch", 2)],
        ),
        tmp_path / "model.onnx",
    )
    [executor] = executors(tmp_path)
    assert isinstance(executor, Binds)
    inputs: Arrays = {"x": np.ones((1, 2), np.float32)}
    outputs = executor.execute(dict(inputs))
    assert sorted(outputs) == ["x", "y"]
    assert executor.bind(inputs, outputs) is None


def test_large_and_ever_new_shapes_are_not_bound(tmp_path: Path) -> None:
    scene = Scene(doubling("batch", "width"), tmp_path)
    for _ in range(3):
        assert scene.answers([[1.0] * 10_000]) == [[[2.0] * 10_000]]
    for width in range(1, 300):
        scene.answers([[1.0] * width])
    assert scene.executor.bound == 0


def test_the_binding_that_was_made_first_makes_room(tmp_path: Path) -> None:
    scene = Scene(doubling("batch", "width"), tmp_path)
    for width in range(1, 18):
        for _ in range(3):
            assert scene.answers([[1.0] * width]) == [[[2.0] * width]]
    executed = scene.executor.executed
    scene.answers([[1.0] * 17])
    assert scene.executor.executed == executed
    scene.answers([[1.0]])
    assert scene.executor.executed == executed + 1


def test_without_a_batch_dimension_each_length_has_its_own_memory(tmp_path: Path) -> None:
    scene = Scene(doubling("length"), tmp_path, rows=False)
    for number in range(8):
        assert scene.answers([number, 1]) == [[2 * number, 2]]
        assert scene.answers([number, 1, 2]) == [[2 * number, 2, 4]]
    assert scene.executor.executed == 4


def test_shapes_that_were_seen_once_are_forgotten_among_many(tmp_path: Path) -> None:
    """Clients choose shapes, so the memory of those seen is bounded."""
    scene = Scene(doubling("batch", "width"), tmp_path)
    for width in range(1, 66):
        scene.answers([[1] * width])
    scene.answers([[1]])
    assert scene.executor.bound == 0
    scene.answers([[1]])
    assert scene.executor.bound == 1
