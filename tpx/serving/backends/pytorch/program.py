"""The file of a model, whose format is detected from its content, and the interface to its program."""

import zipfile
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

import torch

from tpx.errors import Code, LoadError
from tpx.protocol.messages import ModelConfig
from tpx.serving.backends.contract import ModelFiles, inside
from tpx.serving.backends.model_tensors import NUMPY_NAMES

RUNTIME = "model.py"
"""Value of `runtime` for a model whose class is in a Python file."""
_PYTHON_FILE = "model.py"


class Format(Enum):
    """File format of a model; the value is used in messages."""

    TORCHSCRIPT = "TorchScript archive"
    EXPORTED = "torch.export archive"
    INDUCTOR = "AOTInductor package"
    MODULE = "nn.Module in a Python file"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSourceFile:
    """Path and format of a model's file."""

    path: Path
    format: Format


def source_of(files: ModelFiles, config: ModelConfig) -> ModelSourceFile:
    """Return the model's file. Raises LoadError if it is missing or not a model."""
    archives = ["model.pt2", "model.pt"] if config.platform == "torch_aoti" else ["model.pt", "model.pt2"]
    names = [*archives, _PYTHON_FILE]
    if config.default_model_filename:
        names = [config.default_model_filename]
    elif config.runtime == RUNTIME:
        names = [_PYTHON_FILE, "model.pt", "model.pt2"]
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
    format_ = detect_archive_format(path)
    if format_ is not None:
        return ModelSourceFile(path=path, format=format_)
    beside = path.with_suffix(".py")
    if beside.is_file():
        return ModelSourceFile(path=beside, format=Format.MODULE)
    raise LoadError(
        f"'{path}' contains weights but no model: put the model's class beside them, in "
        f"'{beside.name}', or save the model as an archive (torch.export.save)"
    )


def detect_archive_format(path: Path) -> Format | None:
    """Detect the format of an archive; None if it contains only weights. Raises LoadError."""
    try:
        with zipfile.ZipFile(path) as archive:
            # the first path component is the archive's own name
            names = [name.partition("/")[2] for name in archive.namelist()]
    except (OSError, zipfile.BadZipFile) as exc:
        raise LoadError(
            f"'{path}' is not an archive written by PyTorch: {exc}. It takes TorchScript (torch.jit.save), "
            "torch.export.save, and AOTInductor packages (aoti_compile_and_package)"
        ) from exc
    # checked first: a package may also contain the exported program it was compiled from
    if any(name.startswith("data/aotinductor/") for name in names):
        return Format.INDUCTOR
    if "serialized_exported_program.json" in names or any(
        name.startswith("models/") and name.endswith(".json") for name in names
    ):
        return Format.EXPORTED
    if "constants.pkl" in names:
        return Format.TORCHSCRIPT
    if "data.pkl" in names:
        return None
    raise LoadError(f"'{path}' is an archive, but not of a PyTorch model (it has: {names[:8]})")


DTYPES: dict[str, torch.dtype] = {name: getattr(torch, kind) for kind, name in NUMPY_NAMES.items()}
DTYPES["BF16"] = torch.bfloat16
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


Value = Any
"""A tensor, a string, or lists, tuples and mappings of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSlot:
    """A tensor that forward takes or returns."""

    name: str
    """Name of the argument, or key in a dict; empty for a result without a key."""
    label: str = ""
    """AOTInductor's name for it: ARGS[0], KWARGS[scale], RESULT[1]."""
    datatype: str = ""
    """Datatype name; empty if the file does not specify it."""
    shape: tuple[int, ...] | None = None
    """Shape with -1 for variable dimensions; None if the file does not specify it."""
    required: bool = True
    """True for an argument without a default."""
    default: Value = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """Arguments and results of forward, in order."""

    arguments: tuple[TensorSlot, ...] | None
    """Arguments; None if forward takes a dict or any number of tensors."""
    takes_dict: bool = False
    """True if forward takes one dict of tensors by name."""
    results: tuple[TensorSlot, ...] | None = None
    """Results; None if they are unknown before a run."""
    least_rows: int = 0
    most_rows: int = 0
    """Maximum rows of a batch, like `least_rows` the minimum; 0 means no limit."""
    rows_alike: bool = True
    """True if the first dimensions of all tensors are the same variable."""

    @property
    def complete(self) -> bool:
        """True if all datatypes and shapes are known."""
        slots = (*(self.arguments or ()), *(self.results or ()))
        return bool(slots) and self.results is not None and all(slot.datatype for slot in slots)


def datatype_of(dtype: torch.dtype, what: str) -> str:
    """Return the protocol's name of a type. Raises LoadError for one that the protocol lacks."""
    name = _NAMES.get(dtype)
    if name is None:
        raise LoadError(f"{what} has type {dtype}, which the v2 protocol does not support")
    return name


class Program(Protocol):
    """One copy of a model on its device."""

    interface: Interface
    writes: bool | None = None
    """True if it writes into its input tensors; None if that is not known in advance."""
    work_depends_on_values: bool = False
    """True if the values of inputs may decide how long a run takes, and not only their sizes."""
    device: torch.device
    """Device that inputs must be on."""
    storages: frozenset[int]
    """Addresses of its weights; a result that shares memory with them must be copied."""

    def run(self, values: list[Value]) -> Value:
        """Run the model and return a tensor, a list of strings, or a sequence or mapping of these."""

    def close(self) -> None:
        """Release what it holds; by default it holds nothing but memory."""
        return


def storages_of(module: torch.nn.Module) -> frozenset[int]:
    """Return the addresses of a module's parameters and buffers."""
    tensors = (*module.parameters(), *module.buffers())
    return frozenset(tensor.untyped_storage().data_ptr() for tensor in tensors)
