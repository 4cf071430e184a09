"""Small PyTorch models, one a way of taking and giving tensors, and how they are saved."""

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

HAS_COMPILER = bool(shutil.which("g++") or shutil.which("clang++"))


class Affine(nn.Module):
    """A layer, so that there are weights: two rows of weights are enough to tell them apart."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        with torch.no_grad():
            self.layer.weight.copy_(torch.tensor([[1.0, 2.0, 3.0], [0.5, -1.0, 4.0]]))
            self.layer.bias.copy_(torch.tensor([10.0, -10.0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class SumDifference(nn.Module):
    def forward(self, INPUT0: Tensor, INPUT1: Tensor) -> tuple[Tensor, Tensor]:  # noqa: N803 (as in Triton's examples)
        return INPUT0 + INPUT1, INPUT0 - INPUT1


class ByKey(nn.Module):
    def forward(self, given: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"sum": given["a"] + given["b"], "difference": given["a"] - given["b"]}


class Scaled(nn.Module):
    """An argument that only a keyword gives, and results that nest."""

    def forward(self, x: Tensor, *, scale: Tensor) -> dict[str, Any]:
        return {"scaled": x * scale, "parts": (x.sum(1), x.argmax(1))}


class Identity(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class Running(nn.Module):
    """Adds up what it is given and what it is told it had: state and all."""

    def forward(self, value: Tensor, ready: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        after = before + value * ready
        return after, after


class Shout(nn.Module):
    def forward(self, texts: list[str]) -> tuple[list[str], Tensor]:
        return [text + "!" for text in texts], torch.tensor([len(text) for text in texts], dtype=torch.int64)


class Fails(nn.Module):
    """Divides the way the elements say, which not all can be."""

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(-1, int(x[0, 0].item()))


class Refuses(nn.Module):
    """Fails as a whole when one element is negative."""

    def forward(self, x: Tensor) -> Tensor:
        if bool((x < 0).any()):
            raise ValueError("an element is negative")
        return x * 2


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 5))

    def forward(self, image: Tensor) -> Tensor:
        return self.layers(image)


class CostlyIfLarge(nn.Module):
    """Multiplies large matrices if the elements are large."""

    def forward(self, x: Tensor) -> Tensor:
        if bool(x.sum() > 1000):
            large = torch.ones(2000, 2000)
            return x + (large @ large).sum()
        return x


class Positives(nn.Module):
    """The products of all positive elements."""

    def forward(self, x: Tensor) -> Tensor:
        kept = torch.masked_select(x, x > 0)
        return kept.unsqueeze(0) * kept.unsqueeze(1)


class CountedByAnElement(nn.Module):
    """Adds 1 as often as the first element says."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.zeros(1)
        for _ in range(int(x[0])):
            y = y + 1
        return y


class RepeatedWhileSmall(nn.Module):
    """Adds 1 until the sum is 100."""

    def forward(self, x: Tensor) -> Tensor:
        while bool(x.sum() < 100):
            x = x + 1
        return x


class SizedByAnElement(nn.Module):
    """As many zeros as the first element says."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros([int(x[0].item())])


class Zeros(nn.Module):
    """As many zeros as the first element says, for torch.export, which wants to know the limits."""

    def forward(self, x: Tensor) -> Tensor:
        count: Any = x[0].to(torch.int64).item()
        torch._check(count >= 0)
        torch._check(count < 1000)
        return torch.zeros(count)


class CountedByRows(nn.Module):
    """Adds 1 for each row, which is flattened."""

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for _ in range(x.size(0)):
            y = y + 1
        return y.reshape(x.shape[0], -1)


def save_script(module: nn.Module, path: Path) -> None:
    """As TorchScript, of a module in evaluation mode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(module.eval()).save(str(path))


def exported(module: nn.Module, *args: Any, most: int = 0, **kwargs: Any) -> Any:
    """An exported program whose first dimensions are a batch."""
    batch = Dim("batch", min=1, max=most) if most else Dim("batch", min=1)
    return torch.export.export(
        module.eval(),
        args,
        kwargs,
        dynamic_shapes=(
            *(_first(value, batch) for value in args),
            *(_first(value, batch) for value in kwargs.values()),
        )
        if not kwargs
        else {name: {0: batch} for name in ("x", *kwargs)},
    )


def save_exported(program: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.export.save(program, path)


def package(program: Any, path: Path, settings: dict[str, Any] | None = None) -> None:
    """Compile a program into an AOTInductor package; skips the test where there is no C++ compiler."""
    if not HAS_COMPILER:
        pytest.skip("packaging needs a C++ compiler, and here is none")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(path.parent / "cache"))
        torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=settings)


def _first(value: Any, batch: Any) -> Any:
    return {key: {0: batch} for key in value} if isinstance(value, dict) else {0: batch}
