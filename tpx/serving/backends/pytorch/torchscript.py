"""TorchScript archives (`model.pt`), as torch.jit.save writes them."""

import logging
from pathlib import Path
from typing import Any

import torch

from tpx.errors import ConfigError, LoadError
from tpx.serving.backends.pytorch.program import Interface, Slot, Value, storages_of

log = logging.getLogger(__name__)

_STRINGS = "List[str]"
_DICT = "Dict[str, Tensor]"


class TorchScriptProgram:
    """A scripted or traced module."""

    writes: bool | None = None

    def __init__(self, path: Path, device: torch.device | None, model: str) -> None:
        """With `device` None the module stays where its archive says."""
        self._module = _load(path, device, model)
        self.device = device or torch.device("cpu")
        self.storages = storages_of(self._module)
        self._forward = self._module.forward
        arguments = self._forward.schema.arguments[1:]  # the first is the module itself
        self._dict = len(arguments) == 1 and str(arguments[0].type) == _DICT
        slots = () if self._dict else tuple(_slot(argument, model) for argument in arguments)
        self._defaults = [
            argument.default_value if argument.has_default_value() else None for argument in arguments
        ]
        self.interface = Interface(arguments=None if self._dict else slots)
        if getattr(self._module, "training", False):
            log.warning(
                "model '%s' was saved in training mode, in which dropout and batch normalisation act as they "
                "do in training: call eval() before it is saved",
                model,
            )

    def arguments(self, count: int) -> list[Value]:
        return [None] * count if self._dict else list(self._defaults)

    def run(self, values: list[Value], names: list[str]) -> Value:
        if self._dict:
            return self._forward(
                {name: value for name, value in zip(names, values, strict=True) if value is not None}
            )
        return self._forward(*values)

    def close(self) -> None:
        """Nothing but memory is held."""


def _load(path: Path, device: torch.device | None, model: str) -> Value:
    try:
        return torch.jit.load(str(path), map_location=device)
    except (RuntimeError, ValueError, OSError) as exc:
        raise LoadError(f"failed to load model '{model}': '{path}': {exc}") from exc


def _slot(argument: Any, model: str) -> Slot:
    kind = str(argument.type)
    optional = argument.has_default_value() or kind.startswith("Optional[")
    if kind not in ("Tensor", _STRINGS) and not optional:
        if kind.startswith("Dict["):
            raise ConfigError(
                f"unable to load model '{model}', its forward takes the dict '{argument.name}' ({kind}) "
                "beside other inputs. Only a single input of type Dict(str, Tensor) is supported."
            )
        raise ConfigError(
            f"unable to load model '{model}', An input of type '{kind}' was detected in the model: "
            f"'{argument.name}'. Only a single input of type Dict(str, Tensor) or input(s) of type Tensor "
            "are supported."
        )
    return Slot(name=argument.name, required=not optional, strings=kind == _STRINGS)
