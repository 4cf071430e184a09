"""The configuration passed to `auto_complete_config`, and the checks on changes to it."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

Config = dict[str, Any]
"""A configuration or a part of one, as JSON."""

_INPUT_KEYS = ("name", "data_type", "dims", "optional")
_OUTPUT_KEYS = ("name", "data_type", "dims")


class ModelConfig:
    """Collects a model's additions to its configuration; a contradiction raises ValueError, as in Triton."""

    def __init__(self, config: Config, model_name: str) -> None:
        self._config = config
        self._name = model_name

    def as_dict(self) -> Config:
        """Return a copy of the configuration."""
        return copy.deepcopy(self._config)

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Raise max_batch_size. A value below the configured one is a contradiction."""
        configured = self._config.get("max_batch_size", 0)
        if configured > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {configured}, but in auto-complete-config function "
                f"for model '{self._name}' specified max_batch_size {max_batch_size}"
            )
        self._config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Enable dynamic batching, unless another scheduler is configured."""
        for other in ("sequence_batching", "ensemble_scheduling"):
            if self._config.get(other):
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{other}', but auto-complete-config "
                    f"function for model '{self._name}' tries to set scheduling_choice as 'dynamic_batching'"
                )
        self._config.setdefault("dynamic_batching", {})

    def set_model_transaction_policy(self, transaction_policy_dict: Config) -> None:
        """Set whether the model is decoupled."""
        for key in transaction_policy_dict:
            if key != "decoupled":
                raise ValueError(
                    f"model transaction property in auto-complete-config function for model '{self._name}' "
                    "contains property other than 'decoupled'"
                )
        decoupled = bool(transaction_policy_dict.get("decoupled", False))
        policy = self._config.get("model_transaction_policy")
        if policy is not None and "decoupled" in policy and bool(policy["decoupled"]) != decoupled:
            raise ValueError(
                f"trying to change decoupled property in auto-complete-config for model '{self._name}', "
                f"which is already set to '{policy['decoupled']}'"
            )
        self._config["model_transaction_policy"] = {"decoupled": decoupled}

    def add_input(self, input: Config) -> None:  # noqa: A002 (Triton's name)
        """Add an input, or check it against the configured input of this name."""
        self._add_tensor("input", input, _INPUT_KEYS)

    def add_output(self, output: Config) -> None:
        """Add an output, or check it against the configured output of this name."""
        self._add_tensor("output", output, _OUTPUT_KEYS)

    def _add_tensor(self, kind: str, tensor: Config, allowed: tuple[str, ...]) -> None:
        where = f"in auto-complete-config function for model '{self._name}'"
        for key in tensor:
            if key not in allowed:
                words = [f"'{word}'" for word in allowed]
                listed = ", ".join(words[:-1]) + f" and {words[-1]}"
                name = tensor.get("name", "")
                raise ValueError(f"{kind} '{name}' {where} contains property other than {listed}.")
        if "name" not in tensor:
            raise ValueError(f"{kind} {where} is missing 'name' property.")
        for key in ("data_type", "dims"):
            if key not in tensor:
                raise ValueError(f"{kind} '{tensor['name']}' {where} is missing '{key}' property.")
        known = self._config.setdefault(kind, [])
        for configured in known:
            if configured.get("name") == tensor["name"]:
                self._merge_tensor(kind, configured, tensor)
                return
        known.append(dict(tensor))

    def _merge_tensor(self, kind: str, configured: Config, tensor: Config) -> None:
        name, given = tensor["name"], configured.get("data_type")
        if given and given not in ("TYPE_INVALID", tensor["data_type"]):
            raise ValueError(
                f"unable to load model '{self._name}', configuration expects datatype {given} for {kind} "
                f"'{name}', model provides {tensor['data_type']}"
            )
        dims = [int(dim) for dim in configured.get("dims", ())]
        if dims and dims != [int(dim) for dim in tensor["dims"]]:
            raise ValueError(
                f"model '{self._name}', tensor '{name}': the model expects dims {list(tensor['dims'])} but "
                f"the model configuration specifies dims {dims}"
            )
        configured.update(tensor)


def get_input_config_by_name(model_config: Config, name: str) -> Config | None:
    """Return the input of this name in a configuration, None if there is none."""
    return _find_by_name(model_config.get("input"), name)


def get_output_config_by_name(model_config: Config, name: str) -> Config | None:
    """Return the output of this name in a configuration, None if there is none."""
    return _find_by_name(model_config.get("output"), name)


def using_decoupled_model_transaction_policy(model_config: Config) -> bool:
    """Return whether a configuration belongs to a decoupled model."""
    return bool((model_config.get("model_transaction_policy") or {}).get("decoupled", False))


def _find_by_name(tensors: Iterable[Config] | None, name: str) -> Config | None:
    return next((tensor for tensor in tensors or () if tensor.get("name") == name), None)
