"""The configuration of a language model: what is completed, and what is refused by name."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.serving.backends.llamacpp.models import TINY
from tpx.errors import ConfigError, LoadError
from tpx.protocol import model_config
from tpx.protocol.messages import ModelConfig
from tpx.serving.backends.contract import ModelFiles
from tpx.serving.backends.language.model import LanguageModelVersion
from tpx.serving.backends.llamacpp.backend import EngineSettings, LlamaCppBackend


def config_of(text: str = "", **parameters: str) -> ModelConfig:
    config = model_config.parse(f'name: "m" backend: "llamacpp" {text}', "config.pbtxt")
    for key, value in parameters.items():
        config.parameters[key].string_value = value
    return config


def opened(config: ModelConfig, **settings: str) -> LanguageModelVersion:
    host: Any = object()  # it is for instances only
    files = ModelFiles(model_name="m", version=1, directory=TINY.parent, host=host, settings=settings)
    return LlamaCppBackend().open(files, config)


def test_a_configuration_without_tensors_gets_those_of_triton_s_vllm_backend_and_openai_s() -> None:
    config = config_of(f'default_model_filename: "{TINY.name}"')
    model = opened(config)
    model.complete(config, default_max_batch_size=4)
    model.check(config)
    assert {"text_input", "stream", "sampling_parameters", "openai_request"} <= {i.name for i in config.input}
    assert all(each.optional for each in config.input)
    assert {"text_output", "finish_reason", "openai_response"} <= {each.name for each in config.output}
    assert config.model_transaction_policy.decoupled
    assert config.max_batch_size == 0


def test_parameters_become_settings_and_threads_are_always_given() -> None:
    settings = EngineSettings.of(config_of(n_parallel="8", threads="3", embeddings="true"), Path("m.gguf"))
    assert (settings.n_parallel, settings.n_ctx, settings.threads) == (8, 8 * 2048, 3)
    assert settings.embeddings
    assert EngineSettings.of(config_of(), Path("m.gguf")).threads >= 1


@pytest.mark.parametrize(
    ("text", "parameters", "message"),
    [
        ("", {"n_paralel": "2"}, r"no parameter 'n_paralel' \(did you mean 'n_parallel'\?\)"),
        ("", {"n_ctx": "many"}, "'n_ctx' of model 'm' must be a whole number"),
        ("", {"n_ctx": "2", "n_parallel": "4"}, "'n_ctx' of model 'm' must be a whole number from 4"),
        ("", {"pooling": "max"}, "one of mean, cls, last"),
        ("", {"kv_cache_type": "q3"}, "one of f16, q8_0, q4_0"),
        ("", {"mmproj": "none.gguf"}, "'mmproj' of model 'm' must be a GGUF file in"),
        ("", {"mmproj": "__init__.py"}, "'mmproj' of model 'm' must be a GGUF file in"),
        ("", {"mmproj": "../none.gguf"}, "'../none.gguf' is outside"),
        ("max_batch_size: 4", {}, "max_batch_size of model 'm' must be 0"),
        ('input [{ name: "image" data_type: TYPE_STRING dims: [1] }]', {}, "no tensor 'image'"),
        ('input [{ name: "stream" data_type: TYPE_FP32 dims: [1] }]', {}, "no tensor 'stream' of this type"),
        ("instance_group [{ kind: KIND_GPU }]", {}, "must be KIND_CPU"),
    ],
    ids=str,
)
def test_what_the_engine_has_not_is_refused_by_name(
    text: str, parameters: dict[str, str], message: str
) -> None:
    config = config_of(f'default_model_filename: "{TINY.name}" {text}', **parameters)
    model = opened(config)
    model.complete(config, default_max_batch_size=4)
    with pytest.raises(ConfigError, match=message):
        model.check(config)


@pytest.mark.parametrize(
    ("given", "settings", "message"),
    [
        ({"n_ctx": "512"}, {"n_ctx": "many", "n_parallel": "1"}, ""),
        ({}, {"n_ctx": "many"}, "'n_ctx' of model 'm' must be a whole number"),
        ({}, {"n_paralel": "1"}, r"'n_paralel' \(did you mean 'n_parallel'\?\)"),
    ],
)
def test_the_command_line_sets_defaults_which_a_model_replaces(
    given: dict[str, str], settings: dict[str, str], message: str
) -> None:
    config = config_of(f'default_model_filename: "{TINY.name}"', **given)
    model = opened(config, **settings)
    model.complete(config, default_max_batch_size=4)
    with pytest.raises(ConfigError, match=message) if message else nullcontext():
        model.check(config)


def test_a_file_that_is_no_gguf_is_refused_before_a_process_starts(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"PK\x03\x04")
    files = ModelFiles(model_name="m", version=1, directory=tmp_path)
    with pytest.raises(LoadError, match="is no GGUF file"):
        LlamaCppBackend().open(files, config_of())
    with pytest.raises(LoadError, match="unable to find"):
        LlamaCppBackend().open(files, config_of('default_model_filename: "other.gguf"'))
