"""What a SavedModel's signature says of its inputs and outputs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tpx.errors import ConfigError, LoadError
from tpx.serving.backends.model_tensors import ModelTensor

DATATYPES = {
    1: "FP32",
    2: "FP64",
    3: "INT32",
    4: "UINT8",
    5: "INT16",
    6: "INT8",
    7: "BYTES",
    9: "INT64",
    10: "BOOL",
    14: "BF16",
    17: "UINT16",
    19: "FP16",
    22: "UINT32",
    23: "UINT64",
}
"""By TensorFlow's DataType (tensorflow/core/framework/types.proto)."""

_DEFAULT = "serving_default"
_INTERNAL = ("__saved_model_init_op", "__saved_model_train_op")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """An input or output, and the tensor of the graph that it is."""

    place: str
    tensor: ModelTensor


def signature_of(model: str, signatures: Mapping[str, Any], wanted: str) -> Any:
    """The SignatureDef to serve: the wanted one, the default one, or the only one. Raises ConfigError."""
    there = sorted(name for name in signatures if name not in _INTERNAL)
    if not wanted and _DEFAULT not in there and len(there) == 1:
        wanted = there[0]
    name = wanted or _DEFAULT
    if name not in there:
        raise ConfigError(
            f"the SavedModel of '{model}' has no signature '{name}' (it has: {', '.join(there) or 'none'}): "
            "the parameter TF_SIGNATURE_DEF chooses one"
        )
    return signatures[name]


def tensors_of(model: str, infos: Mapping[str, Any]) -> list[Bound]:
    """Inputs or outputs of a signature, in the order of the names that clients use.

    Raises LoadError for what no client could send.
    """
    tensors = []
    for name, info in sorted(infos.items()):
        if info.WhichOneof("encoding") != "name":
            raise LoadError(
                f"'{name}' of model '{model}' is a sparse or composite tensor: give it a dense one"
            )
        shape = info.tensor_shape
        sizes = None if shape.unknown_rank else [dim.size for dim in shape.dim]
        tensors.append(Bound(place=info.name, tensor=model_tensor(model, name, info.dtype, sizes)))
    return tensors


def model_tensor(model: str, name: str, datatype: int, sizes: Iterable[int | None] | None) -> ModelTensor:
    """A tensor of a type and of dimensions as TensorFlow tells them; `sizes` None: of any rank."""
    known = DATATYPES.get(datatype)
    if known is None:
        raise LoadError(
            f"'{name}' of model '{model}' has TensorFlow's type {datatype}, which the v2 protocol cannot "
            "carry"
        )
    if sizes is None:
        return ModelTensor(name=name, datatype=known, shape=(), ranked=False)
    return ModelTensor(
        name=name, datatype=known, shape=tuple(-1 if size is None or size < 0 else size for size in sizes)
    )
