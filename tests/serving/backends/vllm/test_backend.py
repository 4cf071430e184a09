"""Models of Triton's vLLM backend: what their files say to the engine."""

from pathlib import Path

import pytest

from tpx.errors import ConfigError, LoadError
from tpx.protocol import model_config
from tpx.serving.backends.contract import ModelFiles
from tpx.serving.backends.vllm.arguments import read_arguments
from tpx.serving.backends.vllm.backend import VllmBackend, VllmSettings


def settings(words: dict[str, str], arguments: dict[str, object] | None = None) -> VllmSettings:
    config = model_config.parse("name: 'm'", "test")
    for key, value in words.items():
        config.parameters[key].string_value = value
    return VllmSettings.of(config, {"model": "x", **(arguments or {})})


def test_the_sequences_are_those_of_vllm_unless_told() -> None:
    assert settings({}).n_parallel == 256
    assert settings({}, {"max_num_seqs": 8}).n_parallel == 8
    assert settings({"n_parallel": "3"}, {"max_num_seqs": 8}).n_parallel == 3
    assert settings({"max_queue_size": "7", "REPORT_CUSTOM_METRICS": "yes"}).max_queue_size == 7


def test_gpus_are_numbers() -> None:
    assert settings({"GPU_DEVICE_IDS": "0, 2"}).gpus == "0,2"
    for wrong in ("0,0", "a", "-1", "0,"):
        with pytest.raises(ConfigError, match=r"'GPU_DEVICE_IDS' of model 'm' must be numbers of GPUs"):
            settings({"GPU_DEVICE_IDS": wrong})
    with pytest.raises(ConfigError, match="has no parameter 'GPU_DEVICES'"):
        settings({"GPU_DEVICES": "0"})


def test_parameters_replace_members_of_the_file() -> None:
    given = {"max_num_seqs": "16", "kv_cache_dtype": "fp8", "enable_prefix_caching": "false", "shapes": "[1]"}
    made = settings(given, {"max_num_seqs": 8, "dtype": "half"})
    assert made.arguments == {
        "model": "x",
        "max_num_seqs": 16,
        "dtype": "half",
        "kv_cache_dtype": "fp8",
        "enable_prefix_caching": False,
    }
    assert made.n_parallel == 16


def test_a_checkpoint_beside_the_file_is_named_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text('{"model": "mine", "disable_log_requests": true, "dtype": "half"}', encoding="utf-8")
    assert read_arguments(path, "m") == {"model": "mine", "dtype": "half"}
    (tmp_path / "mine").mkdir()
    assert read_arguments(path, "m")["model"] == str(tmp_path / "mine")


def test_adapters_are_those_of_multi_lora_json(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text('{"model": "mine", "enable_lora": "true", "enforce_eager": "false"}', encoding="utf-8")
    with pytest.raises(LoadError, match=r"'enable_lora' of model 'm' requires '.*multi_lora.json'"):
        read_arguments(path, "m")
    adapters = tmp_path / "multi_lora.json"
    adapters.write_text('{"a": "there", "b": "/elsewhere"}', encoding="utf-8")
    (tmp_path / "there").mkdir()
    assert read_arguments(path, "m") == {
        "model": "mine",
        "enable_lora": True,
        "enforce_eager": False,
        "lora_modules": [{"name": "a", "path": str(tmp_path / "there")}, {"name": "b", "path": "/elsewhere"}],
    }
    adapters.write_text('["a"]', encoding="utf-8")
    with pytest.raises(LoadError, match="has to be an object of names and directories"):
        read_arguments(path, "m")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"model": 3}', "[" * 100_000], ids=lambda text: text[:9])
def test_what_is_no_such_file_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.json").write_text(text, encoding="utf-8")
    files = ModelFiles(model_name="m", version=1, directory=tmp_path)
    with pytest.raises(LoadError, match="of model 'm' has to be a JSON object"):
        VllmBackend().open(files, model_config.parse("name: 'm'", "test"))
