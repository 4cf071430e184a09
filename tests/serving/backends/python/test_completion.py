"""auto_complete_config: what a model may add to its configuration, and what it may not change."""

import json
from pathlib import Path

import pytest

from tests.serving.backends.python.asking import ask, y_of
from tests.serving.backends.python.zoo import FP32, SAME, add, io
from tests.serving.live import serving
from tpx.serving.backends.python.worker.model_config import ModelConfig


def test_a_model_without_a_configuration_tells_its_own(tmp_path: Path) -> None:
    add(tmp_path, "completes", config="")
    (tmp_path / "completes" / "config.pbtxt").unlink()
    with serving(tmp_path) as live:
        config = live.get("/v2/models/completes/config").json
        assert config["max_batch_size"] == 4
        assert config["backend"] == "python"
        assert "dynamic_batching" in config
        assert [(i["name"], i["data_type"], i["dims"]) for i in config["input"]] == [("x", "TYPE_FP32", [-1])]
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
        assert y_of(live.infer("completes", {"inputs": [tensor]})) == [2, 4]


def test_without_completion_the_configuration_is_as_it_is_written(tmp_path: Path) -> None:
    add(tmp_path, "completes", config="max_batch_size: 4")
    with serving(tmp_path, disable_auto_complete_config=True) as live:
        config = live.get("/v2/models/completes/config").json
        assert (config["input"], config["output"]) == ([], [])


def test_a_model_without_outputs_loads_and_answers(tmp_path: Path) -> None:
    code = "import triton_python_backend_utils as pb_utils\n\n\nclass TritonPythonModel:\n"
    code += (
        "    def execute(self, requests):\n        return [pb_utils.InferenceResponse([])] * len(requests)\n"
    )
    for name, config in (("silent", io({"x": FP32}, {})), ("empty", "")):
        (add(tmp_path, name, code="double", config=config) / "model.py").write_text(code)
    with serving(tmp_path, model_control_mode="explicit", load_model=("*",)) as live:
        answer = ask(live, "silent", 1)
        assert (answer.status, answer.json["outputs"]) == (200, [])
        assert live.infer("empty", {"inputs": []}).json["outputs"] == []
        override = json.dumps(
            {"backend": "python", "input": live.get("/v2/models/silent/config").json["input"]}
        )
        loaded = live.http(
            "POST",
            "/v2/repository/models/empty/load",
            json.dumps({"parameters": {"config": override}}).encode(),
        )
        assert loaded.status == 200, loaded.body
        assert ask(live, "empty", 1).json["outputs"] == []


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            "max_batch_size: 6",
            "configuration specified max_batch_size 6, but in auto-complete-config",
        ),
        ("sequence_batching { }", "Configuration specified scheduling_choice as 'sequence_batching', but"),
        (
            "model_transaction_policy { decoupled: true }" + SAME,
            "trying to change decoupled property in auto-complete-config for model 'completes', which is "
            "already set to 'True'",
        ),
        (
            io({"x": "data_type: TYPE_FP32 dims: [ -1 ]"}, {"y": "data_type: TYPE_INT32 dims: [ -1 ]"}),
            "unable to load model 'completes', configuration expects datatype TYPE_INT32 for output 'y', "
            "model provides TYPE_FP32",
        ),
        (
            io({"x": "data_type: TYPE_FP32 dims: [ -1 ]"}, {"y": "data_type: TYPE_FP32 dims: [ 7 ]"}),
            "model 'completes', tensor 'y': the model expects dims [-1] but the model configuration "
            "specifies dims [7]",
        ),
    ],
)
def test_a_contradiction_is_told_in_triton_words(tmp_path: Path, config: str, reason: str) -> None:
    add(tmp_path, "completes", config=config)
    with serving(tmp_path, exit_on_error=False) as live:
        [entry] = live.http("POST", "/v2/repository/index").json
        assert "ValueError: " + reason in entry["reason"]


def test_a_completion_must_be_returned(tmp_path: Path) -> None:
    file = add(tmp_path, "completes", config="") / "model.py"
    file.write_text(file.read_text().replace("        return auto_complete_model_config\n", ""))
    with serving(tmp_path, exit_on_error=False) as live:
        [entry] = live.http("POST", "/v2/repository/index").json
        assert (
            "auto_complete_config function in model 'completes' must return a valid pb.ModelConfig object."
            in entry["reason"]
        )


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        ({"data_type": "TYPE_FP32", "dims": [1]}, "is missing 'name' property."),
        ({"name": "i", "dims": [1]}, "input 'i' in auto-complete-config function for model 'm' is missing "),
        ({"name": "i", "data_type": "TYPE_FP32"}, "is missing 'dims' property."),
        (
            {"name": "i", "data_type": "TYPE_FP32", "dims": [1], "colour": "red"},
            "input 'i' in auto-complete-config function for model 'm' contains property other than 'name', "
            "'data_type', 'dims' and 'optional'.",
        ),
    ],
)
def test_a_tensor_that_is_none_is_refused(tensor: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match="auto-complete-config") as caught:
        ModelConfig({}, "m").add_input(tensor)
    assert words in str(caught.value)
