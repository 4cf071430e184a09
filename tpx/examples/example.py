"""Definition of one example, as seen by the code that writes it into a model repository."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Example model: its config.pbtxt as text, and the function that writes its other files."""

    name: str
    description: str
    config: str
    size_bytes: int
    """Disk space of the whole model directory, rounded up; checked before writing."""
    needs_onnx: bool
    """True if `write_files` needs the `onnx` package."""
    needs: str = ""
    """Extra package needed to serve it; without the package, the example is written only if named."""
    calls: tuple[str, ...] = ()
    """Other examples that it needs to be served; they are written with it."""
    write_files: Callable[[Path], None]
    """Writes files into the model directory, in which version directory `1` exists."""
