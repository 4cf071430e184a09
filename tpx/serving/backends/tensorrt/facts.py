"""Facts of an engine, read once: its tensors, and what each optimization profile takes.

Only names are used that the Python API of TensorRT 10 and 11 have in common.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpx.errors import LoadError
from tpx.serving.backends.model_tensors import ModelTensor

if TYPE_CHECKING:
    import tensorrt

_DATATYPES = {
    "FLOAT": "FP32",
    "HALF": "FP16",
    "BF16": "BF16",
    "INT8": "INT8",
    "INT32": "INT32",
    "INT64": "INT64",
    "UINT8": "UINT8",
    "BOOL": "BOOL",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Shapes of an input that a profile takes: the smallest, the best, the largest."""

    least: tuple[int, ...]
    best: tuple[int, ...]
    most: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTensor:
    """An input or output of an engine."""

    tensor: ModelTensor
    is_input: bool
    is_shape: bool = False
    """Its values say how other tensors are shaped: an input of that kind is read in the host's memory."""
    linear: bool = True
    """It lies in memory row by row."""
    spans: tuple[Span, ...] = ()
    """Of an input's shape, by profile."""
    values: tuple[Span | None, ...] = ()
    """Of a shape input's values, by profile."""

    @property
    def name(self) -> str:
        return self.tensor.name


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """All tensors of an engine."""

    inputs: tuple[EngineTensor, ...]
    outputs: tuple[EngineTensor, ...]
    profiles: int
    """How many optimization profiles it has."""

    @property
    def has_shape_tensors(self) -> bool:
        return any(each.is_shape for each in (*self.inputs, *self.outputs))


def facts_of(engine: "tensorrt.ICudaEngine", model: str) -> EngineFacts:
    """Read an ICudaEngine. Raises LoadError for types that no client can send."""
    profiles = engine.num_optimization_profiles
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    found = [_tensor_of(engine, model, name, profiles) for name in names]
    return EngineFacts(
        inputs=tuple(each for each in found if each.is_input),
        outputs=tuple(each for each in found if not each.is_input),
        profiles=profiles,
    )


def _tensor_of(engine: "tensorrt.ICudaEngine", model: str, name: str, profiles: int) -> EngineTensor:
    kind = engine.get_tensor_dtype(name).name
    if kind not in _DATATYPES:
        raise LoadError(f"'{name}' of model '{model}' has TensorRT's type {kind}, which no client can send")
    is_input = engine.get_tensor_mode(name).name == "INPUT"
    is_shape = bool(engine.is_shape_inference_io(name))
    spans = [
        _span(engine.get_tensor_profile_shape(name, index)) for index in range(profiles if is_input else 0)
    ]
    values: list[Span | None] = []
    if is_input and is_shape:
        # the binding takes the profile first, whatever its documentation calls the two
        values = [_values(engine.get_tensor_profile_values(index, name)) for index in range(profiles)]
    return EngineTensor(
        tensor=ModelTensor(name=name, datatype=_DATATYPES[kind], shape=tuple(engine.get_tensor_shape(name))),
        is_input=is_input,
        is_shape=is_shape,
        linear=engine.get_tensor_format(name).name == "LINEAR",
        spans=tuple(spans),
        values=tuple(values),
    )


def _span(shapes: Any) -> Span:
    least, best, most = (tuple(shape) for shape in shapes)
    return Span(least=least, best=best, most=most)


def _values(values: Any) -> Span | None:
    return _span(values) if values else None
