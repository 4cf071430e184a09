"""ONNX models on ONNX Runtime: what they compute, how they are opened, and what is refused."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.serving import onnx_files
from tests.serving.backends.onnxruntime.opening import executors, opened, run
from tests.serving.onnx_files import graph, node, value
from tpx.errors import ConfigError, ExecutionError, InvalidRequest, LoadError
from tpx.protocol.datatypes import BY_NAME
from tpx.serving.backends.onnxruntime.model import OnnxRuntimeBackend


@pytest.mark.parametrize("datatype", [name for name in BY_NAME if name not in ("BYTES", "BF16")])
def test_every_number_comes_back_as_it_went_in(tmp_path: Path, datatype: str) -> None:
    onnx_files.save(onnx_files.identity(datatype), tmp_path / "model.onnx")
    given = np.array([[0, 1], [1, 0], [100, 3]]).astype(BY_NAME[datatype].numpy)
    out = run(tmp_path, x=given)["y"]
    assert out.dtype == given.dtype
    assert out.tolist() == given.tolist()


def test_not_a_number_and_infinities_come_back(tmp_path: Path) -> None:
    onnx_files.save(onnx_files.identity(), tmp_path / "model.onnx")
    given = np.array([[np.nan, np.inf], [-np.inf, -0.0]], dtype=np.float32)
    assert run(tmp_path, x=given)["y"].tobytes() == given.tobytes()


def test_bfloat16_comes_back_bit_by_bit(tmp_path: Path) -> None:
    onnx_files.save(onnx_files.identity("BF16"), tmp_path / "model.onnx")
    given = np.array([[0x3F80, 0x7FC0], [0xFF80, 0x0001]], dtype=np.uint16)
    assert run(tmp_path, x=given)["y"].tolist() == given.tolist()


def test_bfloat16_may_stand_beside_other_numbers(tmp_path: Path) -> None:
    model = graph(
        [node("Cast", ["x"], ["y"], to=onnx_files.TYPES["FP32"]), node("Identity", ["n"], ["z"])],
        [value("x", "BF16", "batch", 2), value("n", "INT64", "batch", 1)],
        [value("y", "FP32", "batch", 2), value("z", "INT64", "batch", 1)],
    )
    onnx_files.save(model, tmp_path / "model.onnx")
    out = run(tmp_path, x=np.array([[0x3F80, 0xC040]], dtype=np.uint16), n=np.array([[2**62]]))
    assert (out["y"].tolist(), out["z"].tolist()) == ([[1.0, -3.0]], [[2**62]])


def test_a_bfloat16_scalar_has_no_dimension(tmp_path: Path) -> None:
    axes = numpy_helper.from_array(np.array([0]), "axes")
    model = graph(
        [node("Unsqueeze", ["x", "axes"], ["y"])], [value("x", "BF16")], [value("y", "BF16", 1)], [axes]
    )
    onnx_files.save(model, tmp_path / "model.onnx")
    assert run(tmp_path, x=np.array([0x3F80], dtype=np.uint16))["y"].tolist() == [0x3F80]


def test_an_input_passed_through_beside_bfloat16_is_a_copy(tmp_path: Path) -> None:
    model = graph(
        [node("Identity", ["x"], ["y"])],
        [value("x", "BF16", "batch", 2), value("n", "FP32", "batch", 1)],
        [value("y", "BF16", "batch", 2), value("n", "FP32", "batch", 1)],
    )
    onnx_files.save(model, tmp_path / "model.onnx")
    given = np.array([[1.0]], dtype=np.float32)
    out = run(tmp_path, x=np.array([[0x3F80, 0xC040]], dtype=np.uint16), n=given)["n"]
    assert not np.shares_memory(out, given)  # the request's memory may be freed before the response is sent
    assert out.tolist() == [[1.0]]


def test_bfloat16_beside_strings_is_refused_when_the_model_is_loaded(tmp_path: Path) -> None:
    model = graph(
        [node("Identity", ["x"], ["y"]), node("Identity", ["words"], ["z"])],
        [value("x", "BF16", "batch", 2), value("words", "BYTES", "batch", 1)],
        [value("y", "BF16", "batch", 2), value("z", "BYTES", "batch", 1)],
    )
    onnx_files.save(model, tmp_path / "model.onnx")
    with pytest.raises(LoadError, match="'net' has bfloat16 and string tensors"):
        executors(tmp_path)


@pytest.mark.parametrize("words", [[b"", b"a"], ["ß€😀".encode(), b"x" * 10_000], [b"a\x00b", b"\x00"]])
def test_strings_come_back(tmp_path: Path, words: list[bytes]) -> None:
    onnx_files.save(onnx_files.identity("BYTES"), tmp_path / "model.onnx")
    out = run(tmp_path, x=np.array([words], dtype=object))["y"]
    assert out.dtype == object
    assert out.tolist() == [words]


def test_strings_that_are_not_utf8_are_the_fault_of_the_request(tmp_path: Path) -> None:
    onnx_files.save(onnx_files.identity("BYTES"), tmp_path / "model.onnx")
    with pytest.raises(InvalidRequest, match="input 'x' is not UTF-8"):
        run(tmp_path, x=np.array([[b"fine", b"\xff"]], dtype=object))


@pytest.mark.parametrize("datatype", ["FP32", "BYTES", "BF16"])
def test_empty_tensors_come_back(tmp_path: Path, datatype: str) -> None:
    onnx_files.save(onnx_files.identity(datatype, "n"), tmp_path / "model.onnx")
    out = run(tmp_path, x=np.zeros((0,), dtype=BY_NAME[datatype].numpy))["y"]
    assert out.shape == (0,)


@pytest.mark.parametrize("datatype", ["FP32", "BYTES", "BF16"])
def test_a_scalar_is_one_element_for_the_client(tmp_path: Path, datatype: str) -> None:
    dims: tuple[onnx_files.Dim, ...] = ()
    model = graph(
        [node("Identity", ["x"], ["y"])], [value("x", datatype, *dims)], [value("y", datatype, *dims)]
    )
    onnx_files.save(model, tmp_path / "model.onnx")
    given = np.array([b"word" if datatype == "BYTES" else 7]).astype(BY_NAME[datatype].numpy)
    out = run(tmp_path, x=given)["y"]
    assert out.shape == (1,)
    assert out.tolist() == given.tolist()


@pytest.mark.parametrize(("most", "dims"), [(0, "-1, 2"), (4, "2")])
def test_a_tensor_of_any_number_of_dimensions_has_those_of_the_configuration(
    tmp_path: Path, most: int, dims: str
) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy")
    onnx_files.save(graph([node("Identity", ["x"], ["y"])], [x], [y]), tmp_path / "model.onnx")
    tensor = f"data_type: TYPE_FP32 dims: [ {dims} ]"
    io = f"input [{{ name: 'x' {tensor} }}] output [{{ name: 'y' {tensor} }}]"
    [executor] = executors(tmp_path, f"max_batch_size: {most} {io} ")
    given = np.arange(6, dtype=np.float32).reshape(3, 2)
    assert executor.execute({"x": given})["y"].tolist() == given.tolist()


def test_data_that_is_not_aligned_is_computed_rightly(tmp_path: Path) -> None:
    onnx_files.save(onnx_files.doubling("batch", 37), tmp_path / "model.onnx")
    given = np.arange(3 * 37, dtype=np.float32)
    for offset in range(1, 8):
        data = bytes(offset) + given.tobytes()
        view = np.ndarray((3, 37), np.dtype("<f4"), memoryview(data)[offset:])
        assert run(tmp_path, x=view)["y"].reshape(-1).tolist() == (given * 2).tolist()


def test_only_configured_outputs_are_computed(tmp_path: Path) -> None:
    model = graph(
        [node("Identity", ["x"], ["y"]), node("Neg", ["x"], ["z"])],
        [value("x", "FP32", "batch", 2)],
        [value("y", "FP32", "batch", 2), value("z", "FP32", "batch", 2)],
    )
    onnx_files.save(model, tmp_path / "model.onnx")
    text = "max_batch_size: 4 input [{ name: 'x' data_type: TYPE_FP32 dims: [ 2 ] }] output [{ name: 'z' "
    [executor] = executors(tmp_path, text + "data_type: TYPE_FP32 dims: [ 2 ] }]")
    assert list(executor.execute({"x": np.ones((1, 2), np.float32)})) == ["z"]


def test_an_error_of_the_model_is_an_execution_error(tmp_path: Path) -> None:
    model = graph(
        [node("MatMul", ["x", "w"], ["y"])],
        [value("x", "FP32", "a", "b"), value("w", "FP32", "c", "d")],
        [value("y", "FP32", "a", "d")],
    )
    onnx_files.save(model, tmp_path / "model.onnx")
    ones = np.ones((2, 3), np.float32)
    with pytest.raises(ExecutionError, match="onnx runtime error: "):
        run(tmp_path, x=ones, w=ones)


# opening


def test_the_model_may_be_a_directory_that_holds_it(tmp_path: Path) -> None:
    onnx_files.save(onnx_files.doubling(), tmp_path / "model.onnx" / "model.onnx")
    assert run(tmp_path, x=np.ones((1, 2), np.float32))["y"].tolist() == [[2, 2]]


def test_weights_may_lie_beside_the_model(tmp_path: Path) -> None:
    onnx_files.with_weights(tmp_path)
    assert run(tmp_path, x=np.ones((1, 2048), np.float32))["y"].tolist() == [[4] * 2048]


def test_weights_may_lie_in_a_directory_together_with_the_model(tmp_path: Path) -> None:
    onnx_files.with_weights(tmp_path / "model.onnx")
    assert sorted(path.name for path in (tmp_path / "model.onnx").iterdir()) == ["model.onnx", "weights.bin"]
    assert run(tmp_path, x=np.ones((1, 2048), np.float32))["y"].tolist() == [[4] * 2048]


def test_an_input_with_a_default_is_optional_where_the_configuration_says_so(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.array([1, 10], dtype=np.float32), "w")
    io = [value("x", "FP32", "batch", 2), value("w", "FP32", 2)], [value("y", "FP32", "batch", 2)]
    onnx_files.save(graph([node("Mul", ["x", "w"], ["y"])], *io, [weight]), tmp_path / "model.onnx")
    text = (
        "input [{ name: 'x' data_type: TYPE_FP32 dims: [ -1, 2 ] }, "
        "{ name: 'w' data_type: TYPE_FP32 dims: [ 2 ] optional: true }] "
        "output [{ name: 'y' data_type: TYPE_FP32 dims: [ -1, 2 ] }] "
    )
    [executor] = executors(tmp_path, text)
    ones = np.ones((1, 2), np.float32)
    assert executor.execute({"x": ones, "w": np.array([3, 4], np.float32)})["y"].tolist() == [[3, 4]]
    assert executor.execute({"x": ones})["y"].tolist() == [[1, 10]]


def test_missing_weights_are_named(tmp_path: Path) -> None:
    onnx_files.with_weights(tmp_path)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(LoadError, match=r"weights\.bin"):
        opened(tmp_path)


def test_another_file_name_is_taken_from_the_configuration(tmp_path: Path) -> None:
    onnx_files.save(onnx_files.doubling(), tmp_path / "other.onnx")
    model = opened(tmp_path, "default_model_filename: 'other.onnx' ")
    model.close()


def test_a_file_of_another_name_is_told_with_the_way_out(tmp_path: Path) -> None:
    onnx_files.save(onnx_files.doubling(), tmp_path / "digits.onnx")
    with pytest.raises(LoadError, match=r"there is 'digits\.onnx': rename it, or say default_model_filename"):
        opened(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"unable to find '.*model\.onnx' for model 'net'"):
        opened(tmp_path)


@pytest.mark.parametrize("name", ["../secret.onnx", "/etc/passwd", "a/../../secret.onnx"])
def test_a_file_name_cannot_leave_the_version_directory(tmp_path: Path, name: str) -> None:
    onnx_files.save(onnx_files.doubling(), tmp_path / "secret.onnx")
    (tmp_path / "1").mkdir()
    with pytest.raises(ConfigError, match=r"default_model_filename .* is outside"):
        opened(tmp_path / "1", f"default_model_filename: '{name}' ")


def _broken_files() -> Iterator[tuple[str, bytes]]:
    good = onnx_files.doubling().SerializeToString()
    yield "empty", b""
    yield "truncated", good[: len(good) // 2]
    yield "garbage", os.urandom(1000)
    yield "text", b"name: 'net'\n" * 100
    yield "git-lfs", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n"


BROKEN = dict(_broken_files())


@pytest.mark.parametrize("data", list(BROKEN.values()), ids=list(BROKEN))
def test_a_broken_file_is_a_load_error_that_names_it(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "model.onnx").write_bytes(data)
    with pytest.raises(LoadError, match=r"cannot load '.*model\.onnx' of model 'net'|provides no|no output"):
        opened(tmp_path)


def test_a_graph_of_unknown_operations_is_a_load_error(tmp_path: Path) -> None:
    io = [value("x", "FP32", 1)], [value("y", "FP32", 1)]
    onnx_files.save(graph([node("NoSuchOp", ["x"], ["y"])], *io), tmp_path / "model.onnx")
    with pytest.raises(LoadError, match="NoSuchOp"):
        opened(tmp_path)


# what cannot be carried


def _odd(kind: Any) -> Any:
    """A model with an input of this type."""
    return onnx_files.graph(
        [node("Identity", ["odd"], ["y"])],
        [helper.make_value_info("odd", kind)],
        [helper.make_value_info("y", kind)],
    )


_FLOATS = helper.make_tensor_type_proto(TensorProto.FLOAT, None)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            helper.make_sequence_type_proto(_FLOATS),
            "type seq(tensor(float)), which the v2 protocol does not support: ",
        ),
        (
            helper.make_optional_type_proto(_FLOATS),
            "type optional(tensor(float)), which the v2 protocol does not support: it supports only tensors",
        ),
        (
            helper.make_tensor_type_proto(TensorProto.FLOAT8E4M3FN, [1]),
            "type tensor(float8e4m3fn), which the v2 protocol does not support",
        ),
    ],
)
def test_types_that_the_protocol_does_not_have_are_refused_by_name(
    tmp_path: Path, kind: Any, words: str
) -> None:
    model = _odd(kind)
    model.opset_import[0].version, model.ir_version = 21, 10
    onnx_files.save(model, tmp_path / "model.onnx")
    with pytest.raises(LoadError) as caught:
        opened(tmp_path)
    assert f"'odd' has {words}" in caught.value.message


def test_the_maps_of_exported_classifiers_are_refused_with_how_to_export_without_them(tmp_path: Path) -> None:
    zipped = helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_strings=["a", "b"])
    values = helper.make_map_type_proto(TensorProto.STRING, _FLOATS)
    kind = helper.make_sequence_type_proto(values)
    model = graph([zipped], [value("x", "FP32", "batch", 2)], [helper.make_value_info("y", kind)])
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    onnx_files.save(model, tmp_path / "model.onnx")
    with pytest.raises(
        LoadError, match=r"'y' has type seq\(map\(string,tensor\(float\)\)\).*'zipmap': False"
    ):
        opened(tmp_path)


# instances


def test_instances_of_one_thread_share_the_weights(tmp_path: Path) -> None:
    onnx_files.save(onnx_files.doubling(), tmp_path / "model.onnx")
    threads = "parameters { key: 'intra_op_thread_count' value { string_value: '%d' } } "
    group = "instance_group [{ name: 'net' kind: KIND_CPU count: 3 }]"
    one = executors(tmp_path, threads % 1 + group)
    two = executors(tmp_path, threads % 2 + group)
    assert len({_session(executor) for executor in one}) == 1
    assert len({_session(executor) for executor in two}) == 3


def _session(executor: Any) -> int:
    return id(executor.session)


@pytest.mark.parametrize(("instances", "cores"), [(1, 4), (2, 4), (4, 4), (3, 8), (8, 4), (1, 1)])
def test_threads_default_to_the_cores_divided_among_the_instances(
    tmp_path: Path, instances: int, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    onnx_files.save(onnx_files.doubling(), tmp_path / "model.onnx")
    model = opened(tmp_path, f"instance_group [{{ name: 'net' kind: KIND_CPU count: {instances} }}]")
    assert model.session_options.intra_op_num_threads == max(1, cores // instances)
    assert model.session_options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_a_cpu_group_has_two_instances_by_default_and_others_one() -> None:
    backend = OnnxRuntimeBackend()
    counts = {kind: backend.default_instance_count(kind) for kind in ("KIND_CPU", "KIND_GPU", "KIND_MODEL")}
    assert counts == {"KIND_CPU": 2, "KIND_GPU": 1, "KIND_MODEL": 1}


def test_outputs_do_not_point_into_memory_that_the_next_run_reuses(tmp_path: Path) -> None:
    for datatype in ("FP32", "BF16"):
        onnx_files.save(onnx_files.identity(datatype), tmp_path / "model.onnx")
        [executor] = executors(tmp_path)
        dtype = BY_NAME[datatype].numpy
        outs = [executor.execute({"x": np.full((1, 2), n, dtype=dtype)})["y"] for n in range(20)]
        assert [out[0, 0] for out in outs] == list(range(20))
        assert not any(np.shares_memory(outs[0], out) for out in outs[1:])
