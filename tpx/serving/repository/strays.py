"""Model files that lie in a repository itself, where they are not served: models are directories."""

from collections.abc import Sequence
from pathlib import Path

from tpx.serving.backends.table import RECOGNISED_FILES
from tpx.serving.repository.layout import Place


def strays(paths: Sequence[Place]) -> list[str]:
    """What to say of model files beside models, and of repositories without a model."""
    found = []
    for path in paths:
        if isinstance(path, Path) and path.is_dir():
            entries = [entry for entry in sorted(path.iterdir()) if not entry.name.startswith(".")]
            files = [_misplaced(entry) for entry in entries if entry.is_file() and _is_model(entry)]
            empty = not files and not any(entry.is_dir() for entry in entries)
            found += [_nothing(path)] if empty else files
    return found


def _is_model(file: Path) -> bool:
    """A Python file may be anything."""
    return f"model{file.suffix}" in RECOGNISED_FILES and file.suffix != ".py"


def _nothing(path: Path) -> str:
    return f"'{path}' holds no models: the file of one has a place such as '{path}/NAME/1/model.onnx'"


def _misplaced(file: Path) -> str:
    place = file.parent / file.stem / "1" / f"model{file.suffix}"
    return f"'{file}' is not served: its place is '{place}', or 'tpx serve {file}' serves it by itself"
