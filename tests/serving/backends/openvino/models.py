"""Small models in OpenVINO's format, converted from ONNX files, and executors on them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from onnx import numpy_helper

from tests.serving.onnx_files import graph, node, save, value
from tpx.protocol import model_config
from tpx.serving.backends.contract import Executor, ModelFiles
from tpx.serving.backends.openvino.backend import OpenVinoBackend, OpenVinoModel
from tpx.serving.backends.parameters import instance_specs

CPU = "instance_group [{ name: 'net' kind: KIND_CPU count: 1 }]"


def config(text: str = "") -> Any:
    """A ModelConfig with one instance unless the text says otherwise."""
    return model_config.parse(f"name: 'net' {text if 'instance_group' in text else text + CPU}", "test")


def parameters(**settings: str) -> str:
    """`parameters` of a config.pbtxt."""
    return "".join(
        f"parameters {{ key: '{key}' value {{ string_value: '{text}' }} }} " for key, text in settings.items()
    )


def convert(model: Any, directory: Path, name: str = "model.xml") -> Path:
    """An ONNX model as OpenVINO's files."""
    source = save(model, directory / "source.onnx")
    ov.save_model(ov.Core().read_model(source), directory / name, compress_to_fp16=False)
    source.unlink()
    return directory


def opened(directory: Path, text: str = "", settings: Mapping[str, str] | None = None) -> OpenVinoModel:
    """The model in `directory`."""
    files = ModelFiles(model_name="net", version=1, directory=directory, settings=settings or {})
    return OpenVinoBackend().open(files, config(text))


def completed(directory: Path, text: str = "") -> Any:
    """The configuration after auto-completion and the check against the model."""
    model, full = opened(directory, text), config(text)
    model.complete(full, default_max_batch_size=4)
    model.check(full)
    return full


def executors(directory: Path, text: str = "") -> list[Executor]:
    """Every instance of the model in `directory`, its configuration completed."""
    model, full = opened(directory, text), config(text)
    model.complete(full, default_max_batch_size=4)
    model.check(full)
    return [model.executor(spec, full) for spec in instance_specs(full)]


def classifier(batch: int | str = "batch") -> Any:
    """A convolution, a pooling and a dense layer with weights of their own: images [batch, 1, 8, 8] -> 10."""
    random = np.random.default_rng(7)
    weights = [
        numpy_helper.from_array(random.normal(size=size).astype(np.float32), name)
        for name, size in (("k", (6, 1, 3, 3)), ("w", (6, 10)), ("b", (10,)))
    ]
    nodes = [
        node("Conv", ["image", "k"], ["c"], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"]),
        node("GlobalAveragePool", ["r"], ["p"]),
        node("Flatten", ["p"], ["f"]),
        node("Gemm", ["f", "w", "b"], ["scores"]),
        node("ArgMax", ["scores"], ["digit"], axis=1, keepdims=0),
    ]
    inputs = [value("image", "FP32", batch, 1, 8, 8)]
    return graph(nodes, inputs, [value("scores", "FP32", batch, 10), value("digit", "INT64", batch)], weights)
