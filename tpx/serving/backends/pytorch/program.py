"""The file of a model, whose format its content tells, and the seam between an instance and that format: what
a model's forward takes and gives."""

import zipfile
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

import torch

from tpx.errors import Code, LoadError
from tpx.protocol.messages import ModelConfig
from tpx.serving.backends.contract import ModelFiles, inside

RUNTIME = "model.py"
"""What `runtime` is of a model whose class is in a Python file."""
_PYTHON_FILE = "model.py"


class Format(Enum):
    """How a model is written; the value is how messages call it."""

    TORCHSCRIPT = "TorchScript archive"
    EXPORTED = "torch.export archive"
    INDUCTOR = "AOTInductor package"
    MODULE = "nn.Module in a Python file"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSourceFile:
    """The file of a model."""

    path: Path
    format: Format


def source_of(files: ModelFiles, config: ModelConfig) -> ModelSourceFile:
    """The model's file. Raises LoadError where there is none, or one that is no model."""
    names = [config.default_model_filename] if config.default_model_filename else _usual_names(config)
    paths = [inside(files.directory, name, "default_model_filename") for name in names]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise LoadError(
            f"unable to find '{paths[0]}' for model '{files.model_name}'"
            + (f" (nor {', '.join(names[1:])})" if names[1:] else ""),
            code=Code.NOT_FOUND,
        )
    if path.suffix == ".py":
        return ModelSourceFile(path=path, format=Format.MODULE)
    source = _archive(path)
    if source is not None:
        return source
    beside = path.with_suffix(".py")
    if beside.is_file():
        return ModelSourceFile(path=beside, format=Format.MODULE)
    raise LoadError(
        f"'{path}' holds weights and no model: put the class of the model beside them, in "
        f"'{beside.name}', or save the model as an archive (torch.export.save)"
    )


def _usual_names(config: ModelConfig) -> list[str]:
    if config.runtime == RUNTIME:
        return [_PYTHON_FILE, "model.pt", "model.pt2"]
    archives = ["model.pt2", "model.pt"] if config.platform == "torch_aoti" else ["model.pt", "model.pt2"]
    return [*archives, _PYTHON_FILE]


def _archive(path: Path) -> ModelSourceFile | None:
    """None where the file holds weights alone."""
    try:
        with zipfile.ZipFile(path) as archive:
            # the first part is the archive's own name
            names = [name.partition("/")[2] for name in archive.namelist()]
    except (OSError, zipfile.BadZipFile) as exc:
        raise LoadError(
            f"'{path}' is not an archive written by PyTorch: {exc}. It takes TorchScript (torch.jit.save), "
            "torch.export.save, and AOTInductor packages (aoti_compile_and_package)"
        ) from exc
    # a package may have the exported program beside what was compiled from it
    if any(name.startswith("data/aotinductor/") for name in names):
        return ModelSourceFile(path=path, format=Format.INDUCTOR)
    if "serialized_exported_program.json" in names or any(
        name.startswith("models/") and name.endswith(".json") for name in names
    ):
        return ModelSourceFile(path=path, format=Format.EXPORTED)
    if "constants.pkl" in names:
        return ModelSourceFile(path=path, format=Format.TORCHSCRIPT)
    if "data.pkl" in names:
        return None
    raise LoadError(f"'{path}' is an archive, but of no model that PyTorch wrote (it has: {names[:8]})")


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
class TensorSlot:
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

    arguments: tuple[TensorSlot, ...] | None
    """None: a dict, or as many as there are."""
    results: tuple[TensorSlot, ...] | None = None
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
