"""Options of sessions: from the parameters of a model and from the command line."""

from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.serving import onnx_files
from tests.serving.backends.onnxruntime.opening import executors, opened, parameters
from tests.serving.onnx_files import graph, node, value
from tpx.errors import ConfigError, LoadError
from tpx.serving.backends.onnxruntime.options import SHRINKAGE
from tpx.serving.heap import give_memory_back


def test_options_come_from_the_parameters_of_the_model(tmp_path: Path) -> None:
    onnx_files.save(onnx_files.doubling(), tmp_path / "model.onnx")
    given = {
        "intra_op_thread_count": "3",
        "inter_op_thread_count": "2",
        "execution_mode": "1",
        "enable_mem_arena": "0",
        "enable_mem_pattern": "0",
        "session.intra_op.allow_spinning": "1",
    }
    options = opened(tmp_path, parameters(given) + "optimization { graph { level: -1 } } ").session_options
    assert options.intra_op_num_threads == 3
    assert options.inter_op_num_threads == 2
    assert options.execution_mode.name == "ORT_PARALLEL"
    assert not options.enable_cpu_mem_arena
    assert not options.enable_mem_pattern
    assert options.graph_optimization_level.name == "ORT_ENABLE_BASIC"
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "1"


@pytest.mark.parametrize(
    ("level", "name"),
    [(0, "ORT_ENABLE_ALL"), (1, "ORT_ENABLE_EXTENDED"), (2, "ORT_DISABLE_ALL"), (-1, "ORT_ENABLE_BASIC")],
)
def test_graph_levels_are_tritons(tmp_path: Path, level: int, name: str) -> None:
    onnx_files.save(onnx_files.doubling(), tmp_path / "model.onnx")
    options = opened(tmp_path, f"optimization {{ graph {{ level: {level} }} }} ").session_options
    assert options.graph_optimization_level.name == name


def test_threads_of_the_command_line_yield_to_those_of_the_model(tmp_path: Path) -> None:
    onnx_files.save(onnx_files.doubling(), tmp_path / "model.onnx")
    settings = {"intra_op_thread_count": "5"}
    assert opened(tmp_path, "", settings).session_options.intra_op_num_threads == 5
    text = "parameters { key: 'intra_op_thread_count' value { string_value: '2' } } "
    assert opened(tmp_path, text, settings).session_options.intra_op_num_threads == 2


@pytest.mark.parametrize("key", ["intra_op_thread_count", "inter_op_thread_count"])
@pytest.mark.parametrize("text", ["two", "-1", "1.5", "²"])
def test_thread_counts_that_are_no_numbers_are_refused(tmp_path: Path, key: str, text: str) -> None:
    onnx_files.save(onnx_files.doubling(), tmp_path / "model.onnx")
    with pytest.raises(ConfigError, match=f"parameter '{key}' of model 'net' must be a whole number"):
        opened(tmp_path, f"parameters {{ key: '{key}' value {{ string_value: '{text}' }} }} ")


@pytest.mark.parametrize("text", ["100000", "9" * 5000])
def test_thread_counts_that_would_take_minutes_to_start_are_refused(tmp_path: Path, text: str) -> None:
    onnx_files.save(onnx_files.doubling(), tmp_path / "model.onnx")
    with pytest.raises(
        ConfigError, match=f"of model 'net' must be a whole number from 0 to 1024, got '{text}'"
    ):
        opened(tmp_path, f"parameters {{ key: 'intra_op_thread_count' value {{ string_value: '{text}' }} }} ")


@pytest.mark.parametrize("key", ["execution_mode", "enable_mem_arena", "enable_mem_pattern"])
def test_switches_that_are_neither_on_nor_off_are_refused(tmp_path: Path, key: str) -> None:
    onnx_files.save(onnx_files.doubling(), tmp_path / "model.onnx")
    with pytest.raises(
        ConfigError, match=f"parameter '{key}' of model 'net' must be true or false, got 'maybe'"
    ):
        opened(tmp_path, f"parameters {{ key: '{key}' value {{ string_value: 'maybe' }} }} ")


def test_session_entries_that_onnx_runtime_refuses_are_load_errors(tmp_path: Path) -> None:
    onnx_files.save(onnx_files.doubling(), tmp_path / "model.onnx")
    key = "session." + "x" * 5000
    with pytest.raises(LoadError, match="'net'"):
        opened(tmp_path, f"parameters {{ key: '{key}' value {{ string_value: '1' }} }} ")


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("gpu_mem_limit", "has no effect: no instance is on a GPU"),
        ("intra_op_thread_counts", "has no effect (did you mean 'intra_op_thread_count'?)"),
        ("sesion.set_denormal_as_zero", "has no effect (did you mean 'session.set_denormal_as_zero'?)"),
        ("memory.enable_arena_shrinkage", f"has no effect (did you mean '{SHRINKAGE}'?)"),
        (
            "session.intra_op.allow_spining",
            "is passed on to ONNX Runtime, but tpx does not know it (did you mean "
            "'session.intra_op.allow_spinning'?)",
        ),
        ("nothing like it", "has no effect\n"),
    ],
)
def test_parameters_that_nothing_reads_are_reported_with_the_nearest_that_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, key: str, words: str
) -> None:
    onnx_files.save(onnx_files.doubling(), tmp_path / "model.onnx")
    opened(tmp_path, parameters({key: "1"}))
    assert f"parameter '{key}' of model 'net' {words}" in caplog.text


def test_nothing_is_reported_where_everything_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    onnx_files.save(onnx_files.doubling(), tmp_path / "model.onnx")
    keys = ("enable_mem_arena", "enable_mem_pattern", "session.use_device_allocator_for_initializers")
    opened(tmp_path, parameters({**dict.fromkeys(keys, "1"), SHRINKAGE: "cpu:0"}))
    assert caplog.text == ""


def test_keys_of_the_command_line_that_nothing_reads_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    onnx_files.save(onnx_files.doubling(), tmp_path / "model.onnx")
    opened(tmp_path, "", {"intra_op_thread_cout": "1", "default-max-batch-size": "3"})
    assert (
        "parameter 'intra_op_thread_cout' of --backend-config onnxruntime has no effect (did you mean "
        "'intra_op_thread_count'?)" in caplog.text
    )
    assert "default-max-batch-size" not in caplog.text


def test_session_entries_reach_onnx_runtime(tmp_path: Path) -> None:
    onnx_files.save(onnx_files.doubling(), tmp_path / "model.onnx")
    with pytest.raises(LoadError, match="ORT"):
        opened(tmp_path, parameters({"session.load_model_format": "ORT"}))


# memory


def spread() -> Any:
    """y = the sum of so many exponentials of 0, which are in memory while it computes."""
    nodes = [
        node("ConstantOfShape", ["count"], ["zeros"]),
        node("Exp", ["zeros"], ["ones"]),
        node("ReduceSum", ["ones"], ["y"], keepdims=1),
    ]
    return graph(nodes, [value("count", "INT64", 1)], [value("y", "FP32", 1)])


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({}, True),
        ({SHRINKAGE: "cpu:0"}, False),
        ({SHRINKAGE: "cpu:0;gpu:0"}, False),
        ({SHRINKAGE: "gpu:1"}, True),
        ({"enable_mem_arena": "0"}, False),
    ],
)
def test_memory_of_a_run_is_kept_for_the_next_one_unless_told(
    tmp_path: Path, given: dict[str, str], kept: bool
) -> None:
    onnx_files.save(spread(), tmp_path / "model.onnx")
    [executor] = executors(tmp_path, parameters({**given, "intra_op_thread_count": "1"}))
    process = psutil.Process()
    executor.execute({"count": np.array([1000])})  # the arena's first piece stays
    give_memory_back()  # what other tests have freed does not count below
    before = process.memory_info().rss
    assert executor.execute({"count": np.array([64 << 18])})["y"].tolist() == [64 << 18]
    give_memory_back()  # a server that ran in this process has made the C library keep what is freed
    assert (process.memory_info().rss - before > 50 << 20) == kept
    executor.close()


@pytest.mark.parametrize("text", ["cpu", "cpu:x", "cpu:0,gpu:0", "tpu:0", ";"])
def test_arenas_that_are_no_devices_are_refused(tmp_path: Path, text: str) -> None:
    onnx_files.save(onnx_files.doubling(), tmp_path / "model.onnx")
    with pytest.raises(ConfigError, match=rf"'{SHRINKAGE}' of model 'net' must be devices .*, got '{text}'"):
        executors(tmp_path, parameters({SHRINKAGE: text}))


@pytest.mark.parametrize("given", [{SHRINKAGE: "cpu:1"}, {SHRINKAGE: "cpu:0", "enable_mem_arena": "0"}])
def test_an_arena_that_there_is_not_is_refused_when_the_model_is_loaded(
    tmp_path: Path, given: dict[str, str]
) -> None:
    onnx_files.save(onnx_files.doubling(), tmp_path / "model.onnx")
    with pytest.raises(ConfigError, match=r"names cpu:\d, which has no arena"):
        executors(tmp_path, parameters(given))
