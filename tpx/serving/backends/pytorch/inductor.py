"""AOTInductor packages (`model.pt2`), as aoti_compile_and_package writes them: compiled code for one
machine."""

import logging
import os
from pathlib import Path

import torch

from tpx.errors import LoadError
from tpx.serving.backends.pytorch.exported import leaves_of
from tpx.serving.backends.pytorch.program import Interface, Slot, Value

log = logging.getLogger(__name__)

_CHECKS = "AOTI_RUNTIME_CHECK_INPUTS"


class InductorProgram:
    """A compiled library; it knows its arguments' places, but neither types nor shapes."""

    writes: bool | None = True  # compiled code leaves no trace of it
    storages: frozenset[int] = frozenset()  # its results are its own

    def __init__(self, path: Path, device: torch.device | None, model: str, *, runs: int = 1) -> None:
        """`runs` may go on at the same time."""
        # without it the code reads beyond the end of a tensor that is smaller than it was compiled for
        os.environ.setdefault(_CHECKS, "1")
        loader = _loader(path, device, model, runs)
        self.device = torch.device("cpu") if device is None else device
        compiled_for = loader.get_metadata().get("AOTI_DEVICE_KEY", self.device.type)
        if compiled_for != self.device.type:
            raise LoadError(
                f"model '{model}': '{path}' was compiled for {compiled_for} and its instance group asks for "
                f"{self.device.type}: set its kind, or compile it again"
            )
        if self.device.type == "cpu":
            log.warning(
                "model '%s': PyTorch runs AOTInductor packages with Python's lock held, and nothing else in "
                "the server goes on meanwhile: for runs of over a millisecond torch.export serves better",
                model,
            )
        given, made = (leaves_of(text) for text in loader.get_call_spec())
        self.interface = Interface(
            arguments=tuple(Slot(name="", label=leaf.argument_label) for leaf in given),
            results=tuple(Slot(name="", label=leaf.result_label) for leaf in made),
        )
        self._run = loader.boxed_run

    def arguments(self, count: int) -> list[Value]:  # noqa: ARG002 (the seam's signature)
        return [None] * len(self.interface.arguments or ())

    def run(self, values: list[Value], names: list[str]) -> Value:  # noqa: ARG002
        return self._run(values)

    def close(self) -> None:
        """Nothing but memory is held."""


def _loader(path: Path, device: torch.device | None, model: str, runs: int) -> Value:
    index = -1 if device is None or device.index is None else device.index
    try:
        from torch._inductor.package import load_package

        return load_package(str(path), num_runners=runs, device_index=index).loader
    except (RuntimeError, ValueError, OSError, ImportError, KeyError) as exc:
        raise LoadError(
            f"failed to load model '{model}': PyTorch {torch.__version__} cannot read '{path}': {exc}"
        ) from exc
