"""One example, as the code that writes it into a model repository sees it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One example model: its config.pbtxt as text, and the function that writes its other files."""

    name: str
    description: str
    config: str
    size_bytes: int
    """Disk space of the whole model directory, rounded up; checked before anything is written."""
    needs_onnx: bool
    """Whether `write_files` builds its graph with the `onnx` package."""
    needs: str = ""
    """A package that serving it needs and the others do not; without it, only its name writes it."""
    calls: tuple[str, ...] = ()
    """Other examples, which it cannot be served without: they are written with it."""
    write_files: Callable[[Path], None]
    """Takes the model directory, in which version directory `1` exists."""
