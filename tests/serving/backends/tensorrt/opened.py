"""Engines that two kinds of tests open: on the fake driver, with the fake module."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.serving.backends.tensorrt import fake_tensorrt
from tests.serving.backends.tensorrt.fake_tensorrt import plan
from tpx.protocol import model_config
from tpx.serving.backends.contract import Executor, ModelFiles
from tpx.serving.backends.parameters import instance_specs
from tpx.serving.backends.tensorrt.backend import TensorRtBackend, TensorRtModel

X: dict[str, Any] = {
    "name": "x",
    "mode": "INPUT",
    "dtype": "FLOAT",
    "shape": [-1, -1],
    "profiles": [[[1, 2], [2, 2], [4, 2]], [[1, 4], [8, 8], [8, 16]]],
}
Y = {"name": "y", "mode": "OUTPUT", "dtype": "FLOAT", "shape": [-1, -1]}
GROUP = "instance_group [{ name: 'net' kind: KIND_GPU count: 1 gpus: [ 0 ] %s }] "
ALL = GROUP % "profile: [ '0', '1' ]"


class Opened:
    """A model, its completed configuration and its instances; closed with the test."""

    def __init__(self, library: str, directory: Path) -> None:
        self._library = library
        self._directory = directory
        self._open: list[Any] = []
        self.trt = fake_tensorrt.module()

    def write(
        self, tensors: Sequence[dict[str, Any]], compute: str = "double", name: str = "model.plan"
    ) -> None:
        (self._directory / name).write_bytes(plan(tensors, compute))

    def model(self, text: str = GROUP % "", settings: dict[str, str] | None = None) -> TensorRtModel:
        files = ModelFiles(model_name="net", version=1, directory=self._directory, settings=settings or {})
        model = TensorRtBackend(self.trt, self._library).open(files, self.config(text))
        self._open.append(model)
        return model

    def config(self, text: str) -> Any:
        return model_config.parse(f"name: 'net' default_model_filename: 'model.plan' {text}", "test")

    def completed(self, text: str = GROUP % "", settings: dict[str, str] | None = None) -> Any:
        model, config = self.model(text, settings), self.config(text)
        model.complete(config, default_max_batch_size=4)
        model.check(config)
        return config

    def executors(self, text: str = GROUP % "") -> list[Executor]:
        model, config = self.model(text), self.config(text)
        model.complete(config, default_max_batch_size=4)
        model.check(config)
        made = [model.executor(spec, config) for spec in instance_specs(config)]
        self._open[-1:-1] = made
        return made

    def close(self) -> None:
        for each in self._open:
            each.close()
