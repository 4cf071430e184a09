"""A repository that is loaded: who serves a name, and what becomes of models that cannot be loaded."""

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from onnx import helper

from tests.serving import onnx_files
from tests.serving.onnx_files import doubling, graph, node, value, write_model
from tests.serving.repository.places import opened
from tpx.errors import InvalidRequest, NotFound, NotReady, TpxError, UsageError
from tpx.protocol import model_config
from tpx.serving.instances.completions import Completions
from tpx.serving.repository.coordinator import Coordinator
from tpx.serving.repository.loading import Loader, LoadSettings
from tpx.serving.repository.options import ModelSpec
from tpx.serving.repository.table import ModelRepository, parse_version

ALL = "version_policy { all { } } "
SCALED = "input [{ name: 'x' data_type: TYPE_FP32 dims: [ %d ] }] output [{ name: 'y' data_type: TYPE_FP32 "


def loaded(
    paths: Path | Sequence[Path],
    look: Callable[[ModelRepository], Any],
    backend_settings: dict[str, dict[str, str]] | None = None,
    **settings: Any,
) -> Any:
    """What `look` sees of the repositories once they are loaded; they are closed afterwards."""

    async def scene() -> Any:
        loop = asyncio.get_running_loop()
        options = LoadSettings(
            options=ModelSpec(model_load_thread_count=2, **settings), backend_settings=backend_settings or {}
        )
        loader = Loader(options, Completions(loop), loop)
        every = [paths] if isinstance(paths, Path) else paths
        repository = ModelRepository()
        control = Coordinator(repository, loader, opened(every))
        try:
            await control.start()
            return look(repository)
        finally:
            await control.close()
            assert repository.served() == []

    return asyncio.run(scene())


def states(repository: ModelRepository) -> dict[str, tuple[str, str]]:
    """State and reason by name:version."""
    return {
        f"{name}:{e.version or 0}": (e.state.value if e.state else "", e.reason)
        for name, e in repository.index()
    }


def reason(path: Path, **settings: Any) -> str:
    """Why the only model cannot be loaded."""
    [(state, why)] = loaded(path, states, **settings).values()
    assert state == "UNAVAILABLE"
    return str(why)


def refusal(repository: ModelRepository, name: str, version: str = "") -> TpxError:
    """What asking for a model raises."""
    with pytest.raises(TpxError) as caught:
        repository.get(name, version)
    return caught.value


def test_models_are_served_by_name_and_version(tmp_path: Path) -> None:
    write_model(tmp_path, "net", config=ALL)
    write_model(tmp_path, "net", version="7")

    def look(repository: ModelRepository) -> None:
        assert states(repository) == {"net:1": ("READY", ""), "net:7": ("READY", "")}
        assert [repository.get("net", version).version for version in ("", "1", "7")] == [7, 1, 7]
        assert [(model.name, model.version) for model in repository.served()] == [("net", 1), ("net", 7)]
        assert repository.all_ready()
        assert repository.failures() == []
        assert repository.is_ready("net")
        assert repository.generation == 1

    loaded(tmp_path, look)


def test_by_default_the_latest_version_is_served(tmp_path: Path) -> None:
    for version in ("2", "10", "9"):
        write_model(tmp_path, "net", version=version)
    assert loaded(tmp_path, states) == {"net:10": ("READY", "")}


def test_what_is_not_there_is_told_in_tritons_words(tmp_path: Path) -> None:
    write_model(tmp_path, "net")
    write_model(tmp_path, "broken", config="input [{ name: 'x' dims: [ 0 ] }]")
    write_model(tmp_path, "wrong", config="max_batch_size: -1")

    def look(repository: ModelRepository) -> None:
        for name, version, kind, message in [
            ("nets", "", NotFound, "Request for unknown model: 'nets' is not found (did you mean 'net'?)"),
            ("nobody", "", NotFound, "Request for unknown model: 'nobody' is not found"),
            ("nobody", "3", NotFound, "Request for unknown model: 'nobody' is not found"),
            ("net", "3", NotFound, "Request for unknown model: 'net' version 3 is not found"),
            ("wrong", "", NotFound, "Request for unknown model: 'wrong' is not found"),
            ("wrong", "1", NotFound, "Request for unknown model: 'wrong' is not found"),
            ("broken", "", NotFound, "Request for unknown model: 'broken' has no available versions"),
            ("broken", "1", NotReady, "Request for unknown model: 'broken' version 1 is not at ready state"),
        ]:
            error = refusal(repository, name, version)
            assert type(error) is kind
            assert error.message == message
            assert not repository.is_ready(name, version)
        assert not repository.all_ready()
        assert repository.failures() == ["broken", "wrong"]

    loaded(tmp_path, look)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "abc",
            "failed to get model version from specified version string 'abc' (details: stol), ",
        ),
        (
            "1.0",
            "failed to get model version from specified version string '1.0' (details: stol), ",
        ),
        ("1_0", "failed to get model version"),
        (" 1", "failed to get model version"),
        ("+1", "failed to get model version"),
        ("\u0661", "failed to get model version"),
        ("0", "invalid model version specified '0' , version should be an integral value > 0"),
        ("-1", "invalid model version specified '-1' , version should be an integral value > 0"),
        ("1" + "0" * 20, "failed to get model version"),
        ("9" * 100_000, "failed to get model version"),
        ("9223372036854775808", "failed to get model version"),
    ],
)
def test_a_version_that_is_no_positive_number_is_an_invalid_request(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_version(text)
    assert caught.value.message.startswith(message)


def test_versions_are_numbers() -> None:
    assert [parse_version(text) for text in ("1", "007", "9223372036854775807")] == [1, 7, 2**63 - 1]


def test_a_model_that_fails_does_not_keep_others_from_loading(tmp_path: Path) -> None:
    write_model(tmp_path, "good")
    for name, config in [
        ("bad-config", "what: 3"),
        ("other-name", "name: 'x'"),
        ("negative", "max_batch_size: -3"),
    ]:
        write_model(tmp_path, name, config=config)
    (write_model(tmp_path, "truncated") / "1" / "model.onnx").write_bytes(b"\x08\x08\x12")
    (tmp_path / "empty").mkdir()
    (write_model(tmp_path, "no-file") / "1" / "model.onnx").unlink()
    found = loaded(tmp_path, states)
    assert found.pop("good:1") == ("READY", "")
    assert all(state == "UNAVAILABLE" for state, _ in found.values())
    words = {key: why for key, (_, why) in found.items()}
    assert words["bad-config:0"].startswith(f"Invalid argument: {tmp_path}/bad-config/config.pbtxt:1:1 : ")
    assert words["other-name:0"] == (
        "Invalid argument: unexpected directory name 'other-name' for model 'x', directory name must equal "
        f"model name ({tmp_path}/other-name/config.pbtxt:1: name)"
    )
    assert words["negative:0"] == (
        "Invalid argument: 'max_batch_size' must be non-negative value for negative "
        f"({tmp_path}/negative/config.pbtxt:1: max_batch_size)"
    )
    assert words["truncated:1"].startswith("Internal: onnx runtime cannot load ")
    assert words["empty:0"].startswith("Invalid argument: Invalid model name: Could not determine backend")
    assert words["no-file:0"].startswith("Invalid argument: Invalid model name: Could not determine backend")


@pytest.mark.parametrize(
    ("config", "place", "message"),
    [
        ("max_batch_size: -3", "net:0", "'max_batch_size' must be non-negative value for net"),
        (
            "dynamic_batching { priority_levels: 2 }",
            "net:0",
            "default priority level must be in range [1, 2] for net",
        ),
        (
            "input [{ name: 'x' data_type: TYPE_FP32 dims: [ 0 ] }]",
            "net:1",
            "model input 'x' dimension must be integer >= 1, or -1 to indicate a variable-size dimension "
            "for net",
        ),
        (
            "instance_group [{ kind: KIND_CPU gpus: [ 0 ] }]",
            "net:1",
            "instance group net_0 of model net has kind KIND_CPU but specifies one or more GPUs",
        ),
        (
            "model_metrics { metric_control [{ }] }",
            "net:0",
            "metric control must specify 'metric_identifier' for net",
        ),
    ],
)
def test_a_wrong_field_is_told_where_the_model_file_is_missing(
    tmp_path: Path, config: str, place: str, message: str
) -> None:
    (write_model(tmp_path, "net", config="backend: 'onnxruntime' " + config) / "1" / "model.onnx").unlink()
    [(found, (state, why))] = loaded(tmp_path, states).items()
    assert (found, state) == (place, "UNAVAILABLE")
    assert why.startswith(f"Invalid argument: {message}")


def test_versions_of_a_model_are_loaded_all_or_none(tmp_path: Path) -> None:
    directory = write_model(tmp_path, "net", config=ALL + "backend: 'onnxruntime'")
    write_model(tmp_path, "net", version="2")
    (directory / "2" / "model.onnx").write_bytes(b"broken")
    found = loaded(tmp_path, states)
    assert found["net:1"] == ("UNAVAILABLE", "unloaded: another version failed to load")
    assert found["net:2"][1].startswith("Internal: onnx runtime cannot load")
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("net_")]


def test_versions_may_differ_in_their_shapes(tmp_path: Path) -> None:
    write_model(tmp_path, "net", doubling("batch", 2), config=ALL)
    write_model(tmp_path, "net", doubling("batch", 3), version="2")
    fixed = doubling(1, 4)
    write_model(tmp_path, "net", fixed, version="3")

    def look(repository: ModelRepository) -> list[tuple[int, list[int]]]:
        models = [repository.get("net", version) for version in "123"]
        return [(m.config.max_batch_size, list(m.config.input[0].dims)) for m in models]

    assert loaded(tmp_path, look) == [(4, [2]), (4, [3]), (0, [1, 4])]


def test_a_single_file_is_served_without_any_configuration(tmp_path: Path) -> None:
    path = onnx_files.save(doubling(), tmp_path / "my net.onnx")

    def look(repository: ModelRepository) -> tuple[str, int, str]:
        model = repository.get("my net")
        return model.name, model.version, model.config.platform

    assert loaded(path, look) == ("my net", 1, "onnxruntime_onnx")


def test_a_name_in_two_repositories_is_unavailable(tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "two"]
    for path in paths:
        write_model(path, "net")
    write_model(paths[0], "other")
    found = loaded(paths, states)
    assert found["other:1"] == ("READY", "")
    state, why = found["net:0"]
    assert state == "UNAVAILABLE"
    assert "model appears in two or more repositories" in why


def test_a_repository_that_is_not_there_is_no_repository(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read model repository"):
        loaded(tmp_path / "nowhere", states)


# configuration through the loader


def test_the_configuration_that_is_served_says_everything(tmp_path: Path) -> None:
    write_model(tmp_path, "net", config="instance_group [{ count: 3 }] metric_tags { key: 'a' value: 'b' }")
    config = loaded(tmp_path, lambda repository: model_config.to_json(repository.get("net").config))
    picked = {key: config[key] for key in ("name", "platform", "backend", "max_batch_size", "metric_tags")}
    assert picked == {
        "name": "net",
        "platform": "onnxruntime_onnx",
        "backend": "onnxruntime",
        "max_batch_size": 4,
        "metric_tags": {"a": "b"},
    }
    assert config["dynamic_batching"]["preferred_batch_size"] == [4]
    assert [(g["name"], g["kind"], g["count"]) for g in config["instance_group"]] == [
        ("net_0", "KIND_CPU", 3)
    ]
    assert [(i["name"], i["data_type"], i["dims"]) for i in config["input"]] == [("x", "TYPE_FP32", [2])]


def test_without_auto_completion_a_configuration_must_be_there_and_complete(tmp_path: Path) -> None:
    write_model(tmp_path, "net")
    assert reason(tmp_path, disable_auto_complete_config=True) == (
        f"Invalid argument: failed to open text file for read {tmp_path}/net/config.pbtxt: "
        "No such file or directory"
    )
    write_model(tmp_path, "net", config="backend: 'onnxruntime'")
    assert reason(tmp_path, disable_auto_complete_config=True) == (
        "Invalid argument: model 'net' must specify at least one output"
    )
    output = "output [{ name: 'y' data_type: TYPE_FP32 dims: [ -1, 2 ] }]"
    write_model(tmp_path, "net", config="backend: 'onnxruntime' " + output)
    assert reason(tmp_path, disable_auto_complete_config=True) == (
        "Invalid argument: unable to load model 'net', configuration expects 0 inputs, model provides 1"
    )
    whole = "input [{ name: 'x' data_type: TYPE_FP32 dims: [ -1, 2 ] }] " + output
    write_model(tmp_path, "net", config=whole)
    assert loaded(tmp_path, states, disable_auto_complete_config=True) == {"net:1": ("READY", "")}


@pytest.mark.parametrize(("size", "expected"), [("1", 1), ("16", 16), ("0", 0)])
def test_the_default_batch_size_comes_from_the_backend_settings(
    tmp_path: Path, size: str, expected: int
) -> None:
    write_model(tmp_path, "net")
    settings = {"onnxruntime": {"default-max-batch-size": size}}
    look = loaded(tmp_path, lambda r: r.get("net").config.max_batch_size, backend_settings=settings)
    assert look == expected


@pytest.mark.parametrize("size", ["many", "-1", "1.5", "²"])
def test_a_default_batch_size_that_is_no_number_is_refused(tmp_path: Path, size: str) -> None:
    write_model(tmp_path, "net")
    why = reason(tmp_path, backend_settings={"": {"default-max-batch-size": size}})
    assert why == (
        "Invalid argument: parameter 'default-max-batch-size' of --backend-config onnxruntime must be a "
        f"whole number from 0 to 2147483647, got '{size}'"
    )


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ("backend: 'mine'", "Invalid argument: unable to find backend library for backend 'mine'"),
        (
            "instance_group [{ kind: KIND_GPU }]",
            "Internal: model 'net' needs ONNX Runtime's CUDAExecutionProvider, which the installed",
        ),
        ("instance_group [{ count: 2000 }]", "Invalid argument: model 'net' asks for 2000 instances"),
        (
            "instance_group [{ count: 2147483647 }]",
            "Invalid argument: model 'net' asks for 2147483647 instances",
        ),
        (
            "instance_group [{ passive: true }]",
            "Invalid argument: model 'net' has no instance that is not passive",
        ),
        (
            "runtime: 'x'",
            "Invalid argument: model 'net': this version of tpx does not support",
        ),
        ("default_model_filename: '../x'", "Invalid argument: default_model_filename '../x' is outside"),
        (
            "output [{ name: 'y' data_type: TYPE_FP32 dims: [ 2 ] label_filename: '../../etc/passwd' }]",
            "Invalid argument: label_filename '../../etc/passwd' is outside",
        ),
        ("max_batch_size: 3 " + SCALED % 5 + "dims: [ 2 ] }]", "Invalid argument: model 'net', tensor 'x'"),
    ],
)
def test_a_configuration_that_cannot_be_served_says_why(tmp_path: Path, config: str, why: str) -> None:
    write_model(tmp_path, "net", config=config)
    assert reason(tmp_path).startswith(why)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("net_")]


def test_a_second_group_that_cannot_start_ends_the_first(tmp_path: Path) -> None:
    write_model(tmp_path, "net", config="instance_group [{ kind: KIND_CPU }, { kind: KIND_GPU }]")
    assert "CUDAExecutionProvider" in reason(tmp_path)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("net_")]


def test_a_model_the_protocol_cannot_carry_says_which_tensor(tmp_path: Path) -> None:
    model = graph(
        [node("SequenceConstruct", ["x"], ["y"])],
        [value("x", "FP32", "batch", 2)],
        [helper.make_tensor_sequence_value_info("y", onnx_files.TYPES["FP32"], None)],
    )
    write_model(tmp_path, "net", model)
    assert "'y' has type seq(tensor(float))" in reason(tmp_path)


def test_a_name_that_is_not_text_is_unavailable_and_the_rest_is_served(tmp_path: Path) -> None:
    write_model(tmp_path, "net")
    os.mkdir(os.fsencode(tmp_path) + b"/caf\xe9")  # noqa: PTH102 (a Path cannot spell it)
    found = loaded(tmp_path, states)
    assert found["net:1"] == ("READY", "")
    assert found["caf\ufffd:0"][0] == "UNAVAILABLE"


@pytest.mark.parametrize("kind", ["directory", "loop", "fifo"])
def test_a_configuration_that_is_no_file_is_no_configuration(tmp_path: Path, kind: str) -> None:
    path = write_model(tmp_path, "net") / "config.pbtxt"
    if kind == "directory":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    else:
        os.mkfifo(path)
    assert loaded(tmp_path, states) == {"net:1": ("READY", "")}


def test_loading_counts_its_time_and_labels_are_read(tmp_path: Path) -> None:
    directory = write_model(
        tmp_path, "net", config=SCALED % 2 + "dims: [ 2 ] label_filename: 'l.txt' }] max_batch_size: 2"
    )
    (directory / "l.txt").write_text("cat\ndog\n")

    def look(repository: ModelRepository) -> None:
        model = repository.get("net")
        assert model.statistics.load_ns > 0
        assert model.signature.outputs["y"].labels == ("cat", "dog")

    loaded(tmp_path, look)


def test_a_closed_repository_has_ended_every_instance(tmp_path: Path) -> None:
    write_model(tmp_path, "net", config="instance_group [{ count: 4 }]")

    def look(repository: ModelRepository) -> None:
        assert len([t for t in threading.enumerate() if t.name.startswith("net_")]) == 4
        assert repository.get("net").in_flight == 0

    loaded(tmp_path, look)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("net_")]
