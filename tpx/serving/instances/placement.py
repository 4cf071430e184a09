"""The instances that a model's `instance_group` asks for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tpx.errors import ConfigError

MAX_INSTANCES = 1024
GLOBAL = -1
"""The device of a resource that all devices share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What an instance takes of the rate limiter while it computes."""

    resources: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """Amounts by name and device."""
    priority: int = 1
    """Twice the number is half the turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSpec:
    """One instance: its name, its kind (KIND_CPU, KIND_GPU, KIND_MODEL) and its device."""

    name: str
    kind: str
    device_id: int = 0
    needs: Needs = field(default_factory=Needs)
    profiles: tuple[str, ...] = ()
    """The optimization profiles of TensorRT that it uses, by their numbers."""


def instance_specs(config: Any) -> list[InstanceSpec]:
    """Every instance of a normalised ModelConfig, those of a GPU group once per GPU. Raises ConfigError."""
    groups = [group for group in config.instance_group if not group.passive]
    total = sum(group.count * max(1, len(group.gpus)) for group in groups)
    if total < 1:
        raise ConfigError(f"model '{config.name}' has no instance that is not passive: it could never answer")
    if total > MAX_INSTANCES:
        raise ConfigError(f"model '{config.name}' asks for {total} instances, more than {MAX_INSTANCES}")
    return [
        InstanceSpec(
            name=f"{group.name}_{index}",
            kind=_kind(group),
            device_id=device,
            needs=_needs(group, device),
            profiles=tuple(group.profile),
        )
        for group in groups
        for device in list(group.gpus) or [0]
        for index in range(group.count)
    ]


def plan_regroup(
    present: Sequence[InstanceSpec], wanted: Sequence[InstanceSpec]
) -> tuple[list[InstanceSpec], list[InstanceSpec]]:
    """The instances to add and those to end, where the others go on as they are, whatever they are called."""
    add = []
    left = list(present)
    for spec in wanted:
        alike = [one for one in left if _alike(one, spec)]
        if alike:
            left.remove(next((one for one in alike if one.name == spec.name), alike[0]))
        else:
            add.append(spec)
    return add, left


def _alike(one: InstanceSpec, other: InstanceSpec) -> bool:
    return replace(one, name=other.name) == other


def _needs(group: Any, device: int) -> Needs:
    limiter = group.rate_limiter
    return Needs(
        resources={(r.name, GLOBAL if getattr(r, "global") else device): r.count for r in limiter.resources},
        priority=limiter.priority or 1,
    )


def _kind(group: Any) -> str:
    name: str = group.DESCRIPTOR.fields_by_name["kind"].enum_type.values_by_number[group.kind].name
    return name
