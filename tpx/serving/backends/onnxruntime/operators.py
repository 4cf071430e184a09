"""Libraries of custom operators: `model_operations.op_library_filename`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnxruntime as ort

from tpx.errors import LoadError
from tpx.serving.backends.libraries import Libraries
from tpx.serving.backends.onnxruntime.failures import ORT_ERRORS

DIRECTORIES = "op-library-directories"
"""The key of --backend-config: directories, with colons between them, that may hold libraries as well."""
_FIELD = "model_operations.op_library_filename"


def register_operators(
    options: ort.SessionOptions, config: Any, directory: Path, settings: Mapping[str, str]
) -> None:
    """Make the operators of every library known to a session.

    Raises ConfigError, LoadError.
    """
    libraries = Libraries(
        model=config.name,
        directory=directory,
        field=_FIELD,
        backend="onnxruntime",
        key=DIRECTORIES,
        settings=settings,
    )
    for name in config.model_operations.op_library_filename:
        library = libraries.find(name)
        try:
            options.register_custom_ops_library(str(library.absolute()))
        except ORT_ERRORS as exc:
            raise LoadError(
                f"model '{config.name}': the library of operators '{library}' ({_FIELD}) cannot be used: "
                f"{exc}"
            ) from exc
