"""Which models may be computed on the event loop: those whose work the values of inputs do not decide."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.serving.live import serving
from tests.serving.onnx_files import doubling, graph, node, save, value, write_model
from tests.waiting import eventually
from tpx.serving.backends.onnxruntime.graph import work_depends_on_values


def constant(name: str, *values: Any, dtype: Any = np.int64, scalar: bool = False) -> Any:
    array = np.array(values[0] if scalar else values, dtype)
    return numpy_helper.from_array(array, name)


def loop(trips: str) -> Any:
    """The node of a loop that adds 1 to `zero`, as often as `trips` says, and its initializers."""
    body = helper.make_graph(
        [node("Identity", ["goes"], ["on"]), node("Add", ["v", "one"], ["w"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("goes", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, [1]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("w", TensorProto.FLOAT, [1]),
        ],
        [constant("one", 1.0, dtype=np.float32)],
    )
    return node("Loop", [trips, "true", "zero"], ["y"], body=body)


LOOPED = (constant("true", True, dtype=np.bool_, scalar=True), constant("zero", 0.0, dtype=np.float32))
N, Y = value("n", "INT64", 1), value("y", "FP32", "size")
SIZE = [node("Shape", ["x"], ["shape"]), node("ReduceProd", ["shape"], ["size"], keepdims=0)]
X = value("x", "FP32", "rows", 2)
MODELS = {
    "as often as an input says": (
        True,
        graph([node("Squeeze", ["n"], ["trips"]), loop("trips")], [N], [Y], LOOPED),
    ),
    "until a condition ends it": (True, graph([loop("")], [N], [Y], LOOPED)),
    "within a condition": (
        True,
        graph(
            [
                node("Cast", ["n"], ["if"], to=TensorProto.BOOL),
                node(
                    "If",
                    ["if"],
                    ["y"],
                    **{
                        f"{branch}_branch": helper.make_graph(
                            [node("ConstantOfShape", ["n"], ["z"])], branch, [], [value("z", "FP32", "size")]
                        )
                        for branch in ("then", "else")
                    },
                ),
            ],
            [N],
            [Y],
        ),
    ),
    "as large as an input says": (True, graph([node("Expand", ["one", "n"], ["y"])], [N], [Y], [LOOPED[1]])),
    "once per element": (False, graph([*SIZE, loop("size")], [X], [Y], LOOPED)),
    "as large as an input is": (
        False,
        graph([node("Shape", ["x"], ["shape"]), node("ConstantOfShape", ["shape"], ["y"])], [X], [Y]),
    ),
    "resized by a constant": (
        False,
        graph(
            [node("Resize", ["x", "", "twice"], ["y"])],
            [X],
            [value("y", "FP32", "a", "b")],
            [constant("twice", 2.0, 2.0, dtype=np.float32)],
        ),
    ),
    "plain": (False, doubling()),
}


@pytest.mark.parametrize("name", MODELS)
def test_work_depends_on_values_where_they_say_how_much_there_is(tmp_path: Path, name: str) -> None:
    depends, model = MODELS[name]
    assert work_depends_on_values(save(model, tmp_path / "model.onnx")) is depends


@pytest.mark.parametrize("content", [b"ORTM" * 100, b"\x08\x08", b"\x3a\x7f"])
def test_nothing_is_known_of_other_formats(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.ort").write_bytes(content)
    assert work_depends_on_values(tmp_path / "model.ort")


def test_a_long_loop_does_not_hold_up_other_clients(tmp_path: Path) -> None:
    write_model(tmp_path, "loops", MODELS["as often as an input says"][1])
    with serving(tmp_path) as live, ThreadPoolExecutor(1) as pool:
        [model] = live.server.plane.served()
        for _ in range(50):  # so that the server knows the model as a short one
            assert live.infer_binary("loops", {"n": np.array([1])}).status == 200
        long = pool.submit(live.infer_binary, "loops", {"n": np.array([1_000_000])})
        eventually(lambda: model.in_flight == 1)
        assert live.get("/v2/health/live").status == 200
        assert not long.done()
        assert long.result().status == 200
