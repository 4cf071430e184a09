"""Decoupled test model, like Triton's `repeat` backend: one response per element of an input.

Inputs are IN [n] INT32, DELAY [n] UINT32 and WAIT [1] UINT32; outputs are OUT [1] INT32 and IDX [1]
UINT32. Response i follows the previous one after DELAY[i] ms; the request is released WAIT ms after the
last one. Needs no model file.
"""

import numpy as np

from tpx.errors import ConfigError, ExecutionError, LoadError
from tpx.protocol.datatypes import BY_NAME
from tpx.protocol.messages import ModelConfig
from tpx.serving.backends.contract import Arrays, InstanceSpec, ModelFiles, ResponseSender

_INPUTS = (("IN", "INT32", -1), ("DELAY", "UINT32", -1), ("WAIT", "UINT32", 1))
_OUTPUTS = (("OUT", "INT32", 1), ("IDX", "UINT32", 1))


class RepeatBackend:
    """The `repeat` backend; there is no file to open."""

    default_filename = ""

    def open(self, files: ModelFiles, config: ModelConfig) -> "RepeatModel":  # noqa: ARG002 (the seam's signature)
        return RepeatModel()


class RepeatModel:
    """A repeat model, whose inputs and outputs are fixed."""

    inline = False

    def complete(self, config: ModelConfig, *, default_max_batch_size: int) -> None:  # noqa: ARG002
        for target, tensors in ((config.input, _INPUTS), (config.output, _OUTPUTS)):
            if not target:
                for name, datatype, dim in tensors:
                    target.add(name=name, data_type=BY_NAME[datatype].number, dims=[dim])
        config.model_transaction_policy.decoupled = True

    def check(self, config: ModelConfig) -> None:
        if not config.model_transaction_policy.decoupled or config.max_batch_size:
            raise ConfigError(
                f"model '{config.name}': the repeat backend is decoupled and has max_batch_size 0"
            )

    def executor(self, spec: InstanceSpec, config: ModelConfig) -> "RepeatExecutor":
        if spec.kind == "KIND_GPU":
            raise LoadError(f"model '{config.name}': the repeat backend needs instance_group kind KIND_CPU")
        return RepeatExecutor()

    def close(self) -> None:
        """Do nothing: there are no resources."""


class RepeatExecutor:
    """Sends one response per element."""

    def respond(self, inputs: Arrays, responses: ResponseSender) -> None:
        elements, delays = inputs["IN"], inputs["DELAY"]
        if elements.shape != delays.shape:
            raise ExecutionError(f"IN has shape {list(elements.shape)}, DELAY {list(delays.shape)}")
        for index, (element, delay) in enumerate(zip(elements, delays, strict=True)):
            out = {"OUT": np.array([element], np.int32), "IDX": np.array([index], np.uint32)}
            if not responses.wait(int(delay) / 1000) or not responses.send(out):
                return
        responses.wait(int(inputs["WAIT"][0]) / 1000)

    def close(self) -> None:
        """Do nothing: there are no resources."""
