"""The weights of an `nn.Module`: files of tensors and nothing else, so that reading them runs no code."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tpx.errors import LoadError

SUFFIXES = (".safetensors", ".pt")


def weights_file(module_file: Path) -> Path | None:
    """The file beside `model.py` that has its name. Raises LoadError where there are two."""
    there = [path for path in map(module_file.with_suffix, SUFFIXES) if path.is_file()]
    if len(there) > 1:
        raise LoadError(f"'{there[0]}' and '{there[1]}' are both weights of '{module_file.name}': remove one")
    return there[0] if there else None


def read_weights(path: Path, device: torch.device) -> Mapping[str, Any]:
    """A state dict. Raises LoadError."""
    try:
        weights = _read_safetensors(path, device) if path.suffix == ".safetensors" else _read(path, device)
    except (RuntimeError, ValueError, OSError, EOFError) as exc:
        raise LoadError(f"cannot read the weights in '{path}': {exc}") from exc
    if not isinstance(weights, Mapping) or not all(
        isinstance(value, torch.Tensor) for value in weights.values()
    ):
        raise LoadError(
            f"'{path}' holds a {type(weights).__name__} and no state dict: save model.state_dict()"
        )
    return weights


def _read(path: Path, device: torch.device) -> Any:
    try:
        return torch.load(path, map_location=device, weights_only=True)
    except pickle.UnpicklingError as exc:
        raise LoadError(
            f"'{path}' holds more than tensors, and reading it could run any code: save model.state_dict(), "
            f"or "
            f"safetensors ({str(exc).splitlines()[0]})"
        ) from exc


def _read_safetensors(path: Path, device: torch.device) -> Any:
    try:
        import safetensors
        import safetensors.torch
    except ImportError as exc:
        raise LoadError(f"reading '{path}' needs the package safetensors: pip install 'tpx[torch]'") from exc
    try:
        return safetensors.torch.load_file(path, device=str(device))
    except safetensors.SafetensorError as exc:
        raise LoadError(f"cannot read the weights in '{path}': {exc}") from exc
