"""Which Python a model runs with: the server's own, or that of its EXECUTION_ENV_PATH."""

from pathlib import Path
from typing import Any

from tpx.errors import LoadError
from tpx.serving.backends.python.process import Interpreter

_KEY = "EXECUTION_ENV_PATH"
_MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"


def interpreter_of(config: Any, directory: Path) -> Interpreter:
    """The interpreter that a configuration asks for; `directory` is the model's. Raises LoadError."""
    if _KEY not in config.parameters:
        return Interpreter()
    path = Path(config.parameters[_KEY].string_value.replace(_MODEL_DIRECTORY, str(directory)))
    if not path.is_dir():
        raise LoadError(f"model '{config.name}': {_KEY} '{path}' is no directory")
    python = path / "bin" / "python"
    if not python.exists():
        raise LoadError(f"model '{config.name}': {_KEY} '{path}' has no bin/python")
    return Interpreter(path=str(python))
