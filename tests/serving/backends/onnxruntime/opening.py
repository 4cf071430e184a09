"""ONNX models opened as the server opens them, without a server."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from tpx.protocol import model_config
from tpx.serving.backends.contract import Executor, ModelFiles
from tpx.serving.backends.onnxruntime.model import OnnxModel, OnnxRuntimeBackend
from tpx.serving.backends.parameters import instance_specs

CPU = "instance_group [{ name: 'net' kind: KIND_CPU count: 1 }]"
GPU = "instance_group [{ name: 'net' kind: KIND_GPU count: 1 gpus: [ 0 ] }]"


def config(text: str = "") -> Any:
    """A ModelConfig with one instance unless the text says otherwise."""
    return model_config.parse(f"name: 'net' {text if 'instance_group' in text else text + CPU}", "test")


def parameters(given: Mapping[str, str]) -> str:
    """Parameters as a configuration writes them."""
    return "".join(
        f"parameters {{ key: '{key}' value {{ string_value: '{text}' }} }} " for key, text in given.items()
    )


def opened(directory: Path, text: str = "", settings: Mapping[str, str] | None = None) -> OnnxModel:
    """The model in `directory`."""
    files = ModelFiles(model_name="net", version=1, directory=directory, settings=settings or {})
    return OnnxRuntimeBackend().open(files, config(text))


def executors(directory: Path, text: str = "", settings: Mapping[str, str] | None = None) -> list[Executor]:
    """Every instance of the model in `directory`, its configuration completed."""
    model = opened(directory, text, settings)
    full = config(text)
    model.complete(full, default_max_batch_size=4)
    model.check(full)
    return [model.executor(spec, full) for spec in instance_specs(full)]


def run(directory: Path, **inputs: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """The outputs of the model in `directory`."""
    [executor] = executors(directory)
    return executor.execute(dict(inputs))
