"""The seam between an instance and the format of its model: what a model's forward takes and gives."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from tpx.errors import LoadError

DTYPES = {
    "BOOL": torch.bool,
    "UINT8": torch.uint8,
    "UINT16": torch.uint16,
    "UINT32": torch.uint32,
    "UINT64": torch.uint64,
    "INT8": torch.int8,
    "INT16": torch.int16,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "FP16": torch.float16,
    "FP32": torch.float32,
    "FP64": torch.float64,
    "BF16": torch.bfloat16,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A tensor that forward takes or gives."""

    name: str
    """The argument, or the key in a dict; of a result without a key empty."""
    label: str = ""
    """As AOTInductor's archives call it: ARGS[0], KWARGS[scale], RESULT[1]."""
    datatype: str = ""
    """Empty: the file does not tell."""
    shape: tuple[int, ...] | None = None
    """Dimensions that vary are -1."""
    required: bool = True
    """True for an argument without a default."""
    strings: bool = False
    """A list of strings, and no tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """All of them, in order."""

    arguments: tuple[Slot, ...] | None
    """None: a dict, or as many as there are."""
    results: tuple[Slot, ...] | None = None
    """None: only a run tells."""
    least_rows: int = 0
    most_rows: int = 0
    """Rows of a batch; 0: any number."""
    rows_alike: bool = True
    """The first dimensions of all of them are the same one."""

    @property
    def complete(self) -> bool:
        """Return whether datatypes and shapes are known."""
        slots = (*(self.arguments or ()), *(self.results or ()))
        return bool(slots) and self.results is not None and all(slot.datatype for slot in slots)


def datatype_of(dtype: torch.dtype, what: str) -> str:
    """The wire name of a type. Raises LoadError for one that the protocol has not."""
    name = _NAMES.get(dtype)
    if name is None:
        raise LoadError(f"{what} has type {dtype}, which the v2 protocol cannot carry")
    return name


Value = Any
"""A tensor, a text, or lists, tuples and mappings of them."""


class Program(Protocol):
    """One copy of a model, on its device."""

    interface: Interface
    writes: bool | None
    """Whether it writes into the tensors that it is given; None: it cannot be known beforehand."""
    device: torch.device
    """Where it takes its inputs."""
    storages: frozenset[int]
    """The addresses of its weights: results that are part of them are not the client's to keep."""

    def arguments(self, count: int) -> list[Value]:
        """Return what a run of the model takes, with the defaults of what no request brings; `count` where
        the model takes any number."""

    def run(self, values: list[Value], names: list[str]) -> Value:
        """A tensor, a list of strings, a sequence or a mapping of them; `names` are those of the values where
        the model takes a dict."""

    def close(self) -> None: ...


def storages_of(module: torch.nn.Module) -> frozenset[int]:
    """The addresses of a module's parameters and buffers."""
    tensors = (*module.parameters(), *module.buffers())
    return frozenset(tensor.untyped_storage().data_ptr() for tensor in tensors)
