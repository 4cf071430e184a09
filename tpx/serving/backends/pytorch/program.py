"""The seam between an instance and whatever format its model is written in."""

from typing import Any, Protocol

import torch

from tpx.serving.backends.pytorch.interface import Interface

Value = Any
"""A tensor, a text, or lists, tuples and mappings of them."""


class Program(Protocol):
    """One copy of a model, on its device."""

    interface: Interface
    writes: bool | None
    """Whether it writes into the tensors that it is given; None: it cannot be known beforehand."""
    device: torch.device
    """Where it takes its inputs."""
    storages: frozenset[int]
    """The addresses of its weights: results that are part of them are not the client's to keep."""

    def arguments(self, count: int) -> list[Value]:
        """What a run of the model takes, with the defaults of what no request brings; `count` where the model
        takes any number."""

    def run(self, values: list[Value], names: list[str]) -> Value:
        """A tensor, a list of strings, a sequence or a mapping of them; `names` are those of the values where
        the model takes a dict."""

    def close(self) -> None: ...


def storages_of(module: torch.nn.Module) -> frozenset[int]:
    """The addresses of a module's parameters and buffers."""
    tensors = (*module.parameters(), *module.buffers())
    return frozenset(tensor.untyped_storage().data_ptr() for tensor in tensors)
