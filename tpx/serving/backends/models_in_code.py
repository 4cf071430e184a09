"""Test models that need no file, like Triton's `identity` and `repeat` backends.

Every output of `identity` equals the input at the same position; it accepts any datatypes and shapes, with
or without batching, and the parameter `execute_delay_ms` sets the duration of each execution.

`repeat` is decoupled: one response per element of an input. Inputs are IN [n] INT32, DELAY [n] UINT32 and
WAIT [1] UINT32; outputs are OUT [1] INT32 and IDX [1] UINT32. Response i follows the previous one after
DELAY[i] ms; the request is released WAIT ms after the last one.
"""

import time

import numpy as np

from tpx.errors import ConfigError, ExecutionError, LoadError
from tpx.protocol.datatypes import BY_NAME
from tpx.protocol.messages import ModelConfig
from tpx.protocol.model_config import path_of
from tpx.serving.backends.contract import Arrays, InstanceSpec, ModelFiles, ResponseSender
from tpx.serving.backends.parameters import GivenParameters

_DELAY = "execute_delay_ms"


class IdentityBackend:
    """The `identity` backend; there is no file to open."""

    default_filename = ""

    def open(self, files: ModelFiles, config: ModelConfig) -> "IdentityModel":  # noqa: ARG002 (the seam's signature)
        return IdentityModel(config)


class IdentityModel:
    """An identity model, whose inputs and outputs come from the configuration; also all of its instances."""

    def __init__(self, config: ModelConfig) -> None:
        for key in config.parameters.keys() - {_DELAY}:
            raise ConfigError(
                f"model '{config.name}': the identity backend has no parameter '{key}' (has: {_DELAY})",
                field=f"parameters[{key}]",
            )
        self._delay_s = GivenParameters.of_model(config).number(_DELAY, "milliseconds", most=1e9) / 1000
        self.inline = not self._delay_s

    def complete(self, config: ModelConfig, *, default_max_batch_size: int) -> None:
        """Do nothing: only the configuration defines the tensors."""

    def check(self, config: ModelConfig) -> None:
        if len(config.input) != len(config.output):
            raise ConfigError(
                f"model '{config.name}': the identity backend needs as many outputs as inputs, the "
                f"configuration has {len(config.output)} and {len(config.input)}",
                field="output",
            )
        for given, output in zip(config.input, config.output, strict=True):
            if (given.data_type, list(given.dims)) != (output.data_type, list(output.dims)):
                raise ConfigError(
                    f"model '{config.name}': output '{output.name}' must have the data_type and dims of "
                    f"input '{given.name}'",
                    field=path_of(config, output),
                )

    def executor(self, spec: InstanceSpec, config: ModelConfig) -> "IdentityModel":
        if spec.kind == "KIND_GPU":
            raise LoadError(f"model '{config.name}': the identity backend needs instance_group kind KIND_CPU")
        pairs = zip(config.input, config.output, strict=True)
        self._pairs = [(given.name, output.name) for given, output in pairs]
        return self

    def execute(self, inputs: Arrays) -> Arrays:
        if self._delay_s:
            time.sleep(self._delay_s)
        return {output: inputs[given] for given, output in self._pairs if given in inputs}

    def close(self) -> None:
        """Do nothing: there are no resources."""


_INPUTS = (("IN", "INT32", -1), ("DELAY", "UINT32", -1), ("WAIT", "UINT32", 1))
_OUTPUTS = (("OUT", "INT32", 1), ("IDX", "UINT32", 1))


class RepeatBackend:
    """The `repeat` backend; there is no file to open."""

    default_filename = ""

    def open(self, files: ModelFiles, config: ModelConfig) -> "RepeatModel":  # noqa: ARG002 (the seam's signature)
        return RepeatModel()


class RepeatModel:
    """A repeat model, whose inputs and outputs are fixed; also all of its instances."""

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
                f"model '{config.name}': the repeat backend is decoupled and has max_batch_size 0",
                field="max_batch_size",
            )

    def executor(self, spec: InstanceSpec, config: ModelConfig) -> "RepeatModel":
        if spec.kind == "KIND_GPU":
            raise LoadError(f"model '{config.name}': the repeat backend needs instance_group kind KIND_CPU")
        return self

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
