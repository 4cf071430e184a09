"""Small networks in every format that the PyTorch backend takes, written as model repositories."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

WIDTH = 16
IO = (
    'backend: "pytorch" max_batch_size: 64 '
    f"input [{{ name: 'x' data_type: TYPE_FP32 dims: [{WIDTH}] }}] "
    f"output [{{ name: 'y' data_type: TYPE_FP32 dims: [{WIDTH}] }}] "
)
MODULE = f"""
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.full(({WIDTH},), 3.0))

    def forward(self, x):
        return x * self.scale + 1
"""


class Net(nn.Module):
    """3 x + 1."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((WIDTH,), 3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale + 1


def save_script(module: nn.Module, version: Path) -> None:
    """Write a module as TorchScript, which PyTorch has deprecated and models still are."""
    torch.jit.script(module).save(str(version / "model.pt"))


def _script(version: Path, device: str) -> None:
    save_script(Net().to(device), version)


def _exported(version: Path, device: str) -> None:
    batch = torch.export.Dim("batch", min=1, max=64)
    example = torch.zeros(2, WIDTH, device=device)
    program = torch.export.export(Net().to(device).eval(), (example,), dynamic_shapes=({0: batch},))
    torch.export.save(program, version / "model.pt2")


def _compiled(version: Path, device: str) -> None:
    # PyTorch before 2.13 compiles for two rows or more, whatever is said
    batch = torch.export.Dim("batch", min=2, max=64)
    example = torch.zeros(2, WIDTH, device=device)
    program = torch.export.export(Net().to(device).eval(), (example,), dynamic_shapes=({0: batch},))
    torch._inductor.aoti_compile_and_package(program, package_path=str(version / "model.pt2"))


def _module(version: Path, device: str) -> None:
    (version / "model.py").write_text(MODULE, encoding="utf-8")
    torch.save(Net().state_dict(), version / "model.pt")


FORMATS: dict[str, tuple[str, Callable[[Path, str], None]]] = {
    "torchscript": ("", _script),
    "export": ("", _exported),
    "aotinductor": ("", _compiled),
    "module": ('runtime: "model.py" ', _module),
}
