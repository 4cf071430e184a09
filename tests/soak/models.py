"""The models of a soak: each has one simple truth that every answer is checked against."""

from pathlib import Path
from typing import Any

from tests.serving.onnx_files import busy, doubling, graph, identity, node, save, value, write_model

SWAPPED, COMING = "swapped", "coming"
"""Is loaded anew, with another truth each time; is loaded and unloaded."""


def write_models(repository: Path) -> None:
    """`double`, `words`, `repeat`, `busy`, and the two that are loaded while the server serves."""
    write_model(repository, "double", doubling("batch", "n"), "max_batch_size: 16 dynamic_batching { }")
    write_model(repository, "words", identity("BYTES", "batch", "n"), "max_batch_size: 8")
    write_model(repository, "busy", busy(rounds=10, width=200), "max_batch_size: 8")
    for name in (SWAPPED, COMING):
        write_model(repository, name, doubling("batch", "n"), "max_batch_size: 8")
    (repository / "repeat" / "1").mkdir(parents=True)
    (repository / "repeat" / "config.pbtxt").write_text("backend: 'repeat'", encoding="utf-8")


def write_swapped(repository: Path, factor: int) -> None:
    """From its next load on, `swapped` multiplies by 2 or by 3. The file is there whole or not at all."""
    directory = repository / SWAPPED / "1"
    new = save(doubling("batch", "n") if factor == 2 else _tripling(), directory / "new")
    new.replace(directory / "model.onnx")


def _tripling() -> Any:
    nodes = [node("Add", ["x", "x"], ["twice"]), node("Add", ["twice", "x"], ["y"])]
    return graph(nodes, [value("x", "FP32", "batch", "n")], [value("y", "FP32", "batch", "n")])
