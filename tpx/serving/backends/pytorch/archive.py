"""Which file a version's model is, and of which kind: told by what is in it, not by what it is called."""

import zipfile
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

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
class Source:
    """The file of a model."""

    path: Path
    format: Format


def source_of(files: ModelFiles, config: ModelConfig) -> Source:
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
        return Source(path=path, format=Format.MODULE)
    source = _archive(path)
    if source is not None:
        return source
    beside = path.with_suffix(".py")
    if beside.is_file():
        return Source(path=beside, format=Format.MODULE)
    raise LoadError(
        f"'{path}' holds weights and no model: put the class of the model beside them, in "
        f"'{beside.name}', or save the model as an archive (torch.export.save)"
    )


def _usual_names(config: ModelConfig) -> list[str]:
    if config.runtime == RUNTIME:
        return [_PYTHON_FILE, "model.pt", "model.pt2"]
    archives = ["model.pt2", "model.pt"] if config.platform == "torch_aoti" else ["model.pt", "model.pt2"]
    return [*archives, _PYTHON_FILE]


def _archive(path: Path) -> Source | None:
    """None where the file holds weights alone."""
    try:
        with zipfile.ZipFile(path) as archive:
            # the first part is the archive's own name
            names = [name.partition("/")[2] for name in archive.namelist()]
    except (OSError, zipfile.BadZipFile) as exc:
        raise LoadError(
            f"'{path}' is no archive that PyTorch wrote: {exc}. It takes TorchScript (torch.jit.save), "
            "torch.export.save, and AOTInductor packages (aoti_compile_and_package)"
        ) from exc
    # a package may have the exported program beside what was compiled from it
    if any(name.startswith("data/aotinductor/") for name in names):
        return Source(path=path, format=Format.INDUCTOR)
    if "serialized_exported_program.json" in names or any(
        name.startswith("models/") and name.endswith(".json") for name in names
    ):
        return Source(path=path, format=Format.EXPORTED)
    if "constants.pkl" in names:
        return Source(path=path, format=Format.TORCHSCRIPT)
    if "data.pkl" in names:
        return None
    raise LoadError(f"'{path}' is an archive, but of no model that PyTorch wrote (it has: {names[:8]})")
