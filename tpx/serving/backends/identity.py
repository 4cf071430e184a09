"""Test model, like Triton's `identity` backend: every output equals the input at the same position.

Accepts any datatypes and shapes, with or without batching. The parameter `execute_delay_ms` sets the
duration of each execution. Needs no model file.
"""

import time

from tpx.errors import ConfigError, LoadError
from tpx.protocol.messages import ModelConfig
from tpx.serving.backends.contract import Arrays, InstanceSpec, ModelFiles

_DELAY = "execute_delay_ms"


class IdentityBackend:
    """The `identity` backend; there is no file to open."""

    default_filename = ""

    def open(self, files: ModelFiles, config: ModelConfig) -> "IdentityModel":  # noqa: ARG002 (the seam's signature)
        return IdentityModel(config)


class IdentityModel:
    """An identity model, whose inputs and outputs come from the configuration."""

    def __init__(self, config: ModelConfig) -> None:
        for key in config.parameters.keys() - {_DELAY}:
            raise ConfigError(
                f"model '{config.name}': the identity backend has no parameter '{key}' (has: {_DELAY})"
            )
        text = config.parameters[_DELAY].string_value if _DELAY in config.parameters else "0"
        try:
            delay_ms = float(text)
        except ValueError:
            delay_ms = -1
        if not 0 <= delay_ms < 1e9:
            raise ConfigError(
                f"model '{config.name}': parameter '{_DELAY}' must be milliseconds, got '{text}'"
            )
        self._delay_s = delay_ms / 1000
        self.inline = not self._delay_s

    def complete(self, config: ModelConfig, *, default_max_batch_size: int) -> None:
        """Do nothing: only the configuration defines the tensors."""

    def check(self, config: ModelConfig) -> None:
        if len(config.input) != len(config.output):
            raise ConfigError(
                f"model '{config.name}': the identity backend needs as many outputs as inputs, the "
                f"configuration has {len(config.output)} and {len(config.input)}"
            )
        for given, output in zip(config.input, config.output, strict=True):
            if (given.data_type, list(given.dims)) != (output.data_type, list(output.dims)):
                raise ConfigError(
                    f"model '{config.name}': output '{output.name}' must have the data_type and dims of "
                    f"input '{given.name}'"
                )

    def executor(self, spec: InstanceSpec, config: ModelConfig) -> "IdentityExecutor":
        if spec.kind == "KIND_GPU":
            raise LoadError(f"model '{config.name}': the identity backend needs instance_group kind KIND_CPU")
        pairs = [(given.name, output.name) for given, output in zip(config.input, config.output, strict=True)]
        return IdentityExecutor(pairs, self._delay_s)

    def close(self) -> None:
        """Do nothing: there are no resources."""


class IdentityExecutor:
    """Returns the inputs as outputs, after a delay."""

    def __init__(self, pairs: list[tuple[str, str]], delay_s: float) -> None:
        self._pairs = pairs
        self._delay_s = delay_s

    def execute(self, inputs: Arrays) -> Arrays:
        if self._delay_s:
            time.sleep(self._delay_s)
        return {output: inputs[given] for given, output in self._pairs if given in inputs}

    def close(self) -> None:
        """Do nothing: there are no resources."""
