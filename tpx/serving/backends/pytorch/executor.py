"""One instance of a PyTorch model: arrays in, forward, arrays out."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from tpx.errors import ExecutionError, TpxError
from tpx.serving.backends.contract import Arrays
from tpx.serving.backends.pytorch.parameters import Switch
from tpx.serving.backends.pytorch.program import Program, Value
from tpx.serving.backends.pytorch.tensors import Inputs, Lender, Outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """How an instance calls its program."""

    model: str
    program: Program
    inputs: Inputs
    outputs: Outputs
    switches: Sequence[tuple[Switch, bool]] = ()
    inference_mode: bool = True
    shared: bool = False
    """The program is of other instances, too."""

    def mode(self) -> AbstractContextManager[None]:
        """No gradients, and in inference mode nothing that would serve them."""
        mode: AbstractContextManager[None] = (
            torch.inference_mode() if self.inference_mode else torch.no_grad()
        )
        return mode

    def run(self, values: list[Value]) -> Value:
        """Forward. Raises ExecutionError."""
        for switch, value in self.switches:
            switch(value)
        return guarded(lambda: self.program.run(values, self.inputs.names))

    def close(self) -> None:
        if not self.shared:
            self.program.close()


def guarded(run: Callable[[], Value]) -> Value:
    """Return what `run` gives; whatever the model raises, its author's code or PyTorch's, becomes an
    ExecutionError."""
    try:
        return run()
    except TpxError:
        raise
    except (Exception, SystemExit) as exc:
        name = "" if type(exc) is RuntimeError else f"{type(exc).__name__}: "
        raise ExecutionError(f"PyTorch execute failure: {name}{exc}") from exc


class CpuExecutor:
    """Computes on the CPU, in the caller's thread and PyTorch's own."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._count = len(call.inputs.names)
        self._lender = Lender(call.model, writes=call.program.writes)

    def execute(self, inputs: Arrays) -> Arrays:
        call, outputs = self._call, self._call.outputs
        values = call.program.arguments(self._count)
        try:
            call.inputs.fill(values, inputs, self._lender)
            with call.mode():
                found = outputs.tensors(call.run(values))
                return {name: outputs.array(value) for name, value in found.items()}
        finally:
            self._lender.settle()

    def close(self) -> None:
        self._call.close()
