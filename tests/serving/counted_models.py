"""ONNX models, by what decides how much they compute; True if that is a value of an input."""

from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tests.serving.onnx_files import doubling, graph, node, value


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


def ending(trips: int) -> Any:
    """A loop of at most so many trips that ends when what it carries, a sum of `n`, is large."""
    body = helper.make_graph(
        [node("Add", ["v", "step"], ["w"]), node("Less", ["w", "most"], ["on"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("goes", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, []),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("w", TensorProto.FLOAT, []),
        ],
        [constant("most", 1e9, dtype=np.float32, scalar=True)],
    )
    nodes = [
        node("Cast", ["n"], ["steps"], to=TensorProto.FLOAT),
        node("Squeeze", ["steps"], ["step"]),
        node("Loop", ["trips", "true", "start"], ["sum"], body=body),
        node("Unsqueeze", ["sum", "axis"], ["y"]),
    ]
    initializers = [
        constant("trips", trips, scalar=True), constant("true", True, dtype=np.bool_, scalar=True),
        constant("start", 0.0, dtype=np.float32, scalar=True), constant("axis", 0),
    ]  # fmt: skip
    return graph(nodes, [N], [Y], initializers)


def branching(condition: Any, inputs: Any) -> Any:
    """A model that multiplies large matrices if a condition holds."""
    cheap = [node("Identity", ["zero"], ["z"])]
    costly = [
        node("ConstantOfShape", ["large"], ["a"]), node("MatMul", ["a", "a"], ["b"]),
        node("ReduceSum", ["b"], ["c"], keepdims=0), node("Unsqueeze", ["c", "axis"], ["z"]),
    ]  # fmt: skip
    branches = {
        f"{name}_branch": helper.make_graph(nodes, name, [], [value("z", "FP32", 1)])
        for name, nodes in (("then", costly), ("else", cheap))
    }
    initializers = [
        LOOPED[1],
        constant("large", 2000, 2000),
        constant("axis", 0),
        constant("few", 4, scalar=True),
    ]
    return graph([*condition, node("If", ["if"], ["y"], **branches)], inputs, [Y], initializers)


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
    "at most so often, until a value ends it": (True, ending(1_000_000)),
    "one branch is costly": (True, branching([node("Cast", ["n"], ["if"], to=TensorProto.BOOL)], [N])),
    "a branch for large inputs": (False, branching([*SIZE, node("Less", ["few", "size"], ["if"])], [X])),
    "what is suppressed": (
        True,
        graph(
            [node("NonMaxSuppression", ["boxes", "scores", "most"], ["y"])],
            [value("boxes", "FP32", 1, "b", 4), value("scores", "FP32", 1, 1, "b")],
            [value("y", "INT64", "kept", 3)],
            [constant("most", 1000)],
        ),
    ),
    "as many as are not zero": (
        True,
        graph([node("NonZero", ["x"], ["y"])], [X], [value("y", "INT64", 2, "kept")]),
    ),
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


class Costly(NamedTuple):
    """A model, a value of `n` that it computes at once, and one that takes long."""

    model: Any
    quick: int
    costly: int


COSTLY = {
    "ending": Costly(MODELS["at most so often, until a value ends it"][1], 1_000_000_000, 1),
    "branching": Costly(MODELS["one branch is costly"][1], 0, 1),
}
