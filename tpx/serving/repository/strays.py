"""Files in places where nobody looks for them: models beside models, configurations of other names."""

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path

from tpx.serving.backends.table import RECOGNISED_FILES
from tpx.serving.repository.layout import ModelSource, Place


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


def stray_configs(sources: Iterable[ModelSource]) -> list[str]:
    """What to say of files that look like the configurations of models that have none."""
    here = (source for source in sources if source.origin is None and not source.fault)
    alone = [source for source in here if not source.has_config]
    pairs = [(stray, source.config_path) for source in alone if (stray := _stray_config(source)) is not None]
    return [f"'{stray}' is not read: a configuration's place is '{place}'" for stray, place in pairs]


def _stray_config(source: ModelSource) -> Path | None:
    """A file beside the versions that is called nearly so, or one in a version that is called so."""
    beside = sorted(entry.name for entry in source.directory.glob("*") if entry.is_file())
    close = difflib.get_close_matches(source.config_path.name, beside, n=1, cutoff=0.75)
    inside = [directory / source.config_path.name for directory in source.versions.values()]
    found = [source.directory / name for name in close] + [path for path in inside if path.is_file()]
    return found[0] if found else None


def _is_model(file: Path) -> bool:
    """A Python file may be anything."""
    return f"model{file.suffix}" in RECOGNISED_FILES and file.suffix != ".py"


def _nothing(path: Path) -> str:
    return f"'{path}' holds no models: the file of one has a place such as '{path}/NAME/1/model.onnx'"


def _misplaced(file: Path) -> str:
    place = file.parent / file.stem / "1" / f"model{file.suffix}"
    return f"'{file}' is not served: its place is '{place}', or 'tpx serve {file}' serves it by itself"
