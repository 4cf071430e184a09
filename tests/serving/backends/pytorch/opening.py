"""Opening models with the backend alone, without a server."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy.typing as npt

from tpx.protocol import model_config
from tpx.serving.backends.contract import Executor, ModelFiles
from tpx.serving.backends.parameters import instance_specs
from tpx.serving.backends.pytorch.backend import PytorchBackend, PytorchModel

Arrays = dict[str, npt.NDArray[Any]]

QUIET_JIT = "ignore:`torch.jit:DeprecationWarning"
"""Loading TorchScript is deprecated, and warnings are errors here."""


def config(text: str = "", *, instances: str = "kind: KIND_CPU count: 1") -> Any:
    """A ModelConfig of the pytorch backend with one instance, unless the text says otherwise."""
    return model_config.parse(
        f"name: 'net' backend: 'pytorch' instance_group [{{ name: 'net' {instances} }}] {text}", "test"
    )


@contextmanager
def opened(directory: Path, text: str = "", **how: str) -> Iterator[tuple[PytorchModel, Any]]:
    """The model in `directory`, and its configuration, completed and checked."""
    full = config(text, **how)
    files = ModelFiles(model_name="net", version=1, directory=directory)
    model = PytorchBackend().open(files, full)
    try:
        model.complete(full, default_max_batch_size=4)
        model.check(full)
        yield model, full
    finally:
        model.close()


def check(directory: Path, text: str = "", **how: str) -> Any:
    """The completed configuration of the model in `directory`; raises what is wrong with it."""
    with opened(directory, text, **how) as (_, full):
        return full


@contextmanager
def executors(directory: Path, text: str = "", **how: str) -> Iterator[list[Executor]]:
    """Every instance of the model in `directory`."""
    with opened(directory, text, **how) as (model, full):
        made = [model.executor(spec, full) for spec in instance_specs(full)]
        yield made
        for executor in made:
            executor.close()


def run(directory: Path, text: str, **inputs: npt.NDArray[Any]) -> Arrays:
    """The outputs of one run."""
    with executors(directory, text) as (executor, *_):
        return executor.execute(dict(inputs))


def tensors(kind: str, *lines: str) -> str:
    """Inputs or outputs of a configuration, each written as `NAME TYPE dims`."""
    items = []
    for line in lines:
        name, datatype, *dims = line.split()
        items.append(f"{{ name: '{name}' data_type: TYPE_{datatype} dims: [{', '.join(dims)}] }}")
    return f"{kind} [{', '.join(items)}] "
