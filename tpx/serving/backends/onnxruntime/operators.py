"""Libraries of custom operators: `model_operations.op_library_filename`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnxruntime as ort

from tpx.errors import ConfigError, LoadError
from tpx.serving.backends.base import inside
from tpx.serving.backends.onnxruntime.failures import ORT_ERRORS

DIRECTORIES = "op-library-directories"
"""The key of --backend-config: directories, with colons between them, that may hold libraries as well."""
_FIELD = "model_operations.op_library_filename"


def register_operators(
    options: ort.SessionOptions, config: Any, directory: Path, settings: Mapping[str, str]
) -> None:
    """Make the operators of every library known to a session.

    A library is native code that becomes part of the server. As clients may be allowed to load models with a
    configuration of their own, it must lie in the model's directory, or where the command line says. Raises
    ConfigError, LoadError.
    """
    allowed = [Path(place) for place in settings.get(DIRECTORIES, "").split(":") if place]
    for name in config.model_operations.op_library_filename:
        library = _find(config.name, name, directory, allowed)
        try:
            options.register_custom_ops_library(str(library.absolute()))
        except ORT_ERRORS as exc:
            raise LoadError(
                f"model '{config.name}': the library of operators '{library}' ({_FIELD}) cannot be used: "
                f"{exc}"
            ) from exc


def _find(model: str, name: str, directory: Path, allowed: list[Path]) -> Path:
    """In the version's directory, in the model's, or in those that are allowed."""
    given = Path(name)
    for place in allowed:
        if (
            given.is_absolute()
            and given.is_relative_to(place)
            and ".." not in given.parts
            and given.is_file()
        ):
            return given
    if given.is_absolute():
        raise ConfigError(
            f"{_FIELD} '{name}' of model '{model}' is outside of the model's directory: put it there, or "
            f"start with --backend-config=onnxruntime,{DIRECTORIES}={given.parent}"
        )
    places = [inside(place, name, _FIELD) for place in (directory, directory.parent, *allowed)]
    for place in places:
        if place.is_file():
            return place
    raise ConfigError(
        f"model '{model}' has no library of operators '{name}' ({_FIELD}); looked for "
        f"{', '.join(map(str, places))}"
    )
