"""The instances that a model's `instance_group` asks for."""

from dataclasses import dataclass
from typing import Any

from tpx.errors import ConfigError

MAX_INSTANCES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSpec:
    """One instance: its name, its kind (KIND_CPU, KIND_GPU, KIND_MODEL) and its device."""

    name: str
    kind: str
    device_id: int = 0


def instance_specs(config: Any) -> list[InstanceSpec]:
    """Every instance of a normalised ModelConfig, those of a GPU group once per GPU."""
    out = []
    for group in config.instance_group:
        kind = group.DESCRIPTOR.fields_by_name["kind"].enum_type.values_by_number[group.kind].name
        if group.passive:
            continue
        for device in list(group.gpus) or [0]:
            out += [
                InstanceSpec(name=f"{group.name}_{index}", kind=kind, device_id=device)
                for index in range(group.count)
            ]
    if len(out) > MAX_INSTANCES:
        raise ConfigError(f"model '{config.name}' asks for {len(out)} instances, more than {MAX_INSTANCES}")
    return out
