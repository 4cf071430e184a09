"""Models for the tests of what requests carry."""

from pathlib import Path
from typing import Any

from tpx.perf.clients.model import ModelDescription, TensorDescription
from tpx.perf.inputs.base import InputSource, InputSpec
from tpx.perf.inputs.dataset import open_data
from tpx.perf.inputs.steps import DataSet, DataStream, Step
from tpx.perf.settings import Shape


def spec(name: str = "x", *shape: int, datatype: str = "FP32", **more: Any) -> TensorDescription:
    """A tensor of a model."""
    return TensorDescription(name=name, datatype=datatype, shape=shape, **more)


def model(*shape: int, datatype: str = "FP32", max_batch_size: int = 8, **more: Any) -> ModelDescription:
    """A model with an input `x`, and an output `y` of the same kind."""
    x, y = spec("x", *shape, datatype=datatype), spec("y", *shape, datatype=datatype)
    return model_of(x, outputs=(y,), max_batch_size=max_batch_size, **more)


def model_of(*inputs: TensorDescription, **more: Any) -> ModelDescription:
    """A model with these inputs."""
    return ModelDescription(**{"name": "net", "inputs": inputs, "max_batch_size": 8, **more})


def made(
    description: ModelDescription, kind: str = "random", source: InputSource | None = None, **settings: Any
) -> Step:
    """The first step of the data that is made for a model; `source` is of its input."""
    sources = () if source is None else (source,)
    data = open_data(description, InputSpec(input_data=(kind,), input=sources, **settings))
    return data.streams[0][0]


def data_of(
    description: ModelDescription, *paths: Path, shapes: tuple[Shape, ...] = (), **more: Any
) -> DataSet:
    """The data of files."""
    return open_data(description, InputSpec(input_data=tuple(map(str, paths)), shape=shapes, **more))


def values(step: Step, index: int = 0) -> list[Any]:
    """The flat values of one of a step's inputs."""
    array = step.inputs[index].numpy()
    return list(array.reshape(-1).tolist())


def all_values(stream: DataStream) -> list[list[Any]]:
    """The flat values of the first input of each step."""
    return [values(stream[i]) for i in range(len(stream))]
