"""The dimensions that the user listed: fields of a model's configuration and their values."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from tpx.analyzer.config_sweep import ConfigAxis, ConfigSweep, delta_of
from tpx.analyzer.search.space import Choice, Dimension
from tpx.analyzer.variants import ModelFacts, automatic_delta


def listed_dimensions(facts: ModelFacts, sweep: ConfigSweep) -> list[Dimension]:
    """A dimension for each field. What lies in a list, as instance groups do, varies as one: a place in it
    cannot be set without the others."""
    groups: dict[str, list[ConfigAxis]] = {}
    for axis in sweep.axes:
        in_list = any(isinstance(part, int) for part in axis.path)
        groups.setdefault(str(axis.path[0]) if in_list else axis.label, []).append(axis)
    found = [_dimension(name, axes, facts) for name, axes in groups.items()]
    return sorted(found, key=lambda dimension: dimension.name not in ("instances", "max_batch_size"))


def _dimension(name: str, axes: Sequence[ConfigAxis], facts: ModelFacts) -> Dimension:
    paths = [axis.path for axis in axes]
    alternatives = list(itertools.product(*(axis.values for axis in axes)))
    if name == "instance_group":
        choices = [_instances(delta_of(paths, values), facts) for values in alternatives]
        return Dimension(name="instances", choices=_by_amount(choices))
    if name == "max_batch_size":
        return Dimension(
            name=name, choices=_by_amount([_batch_size(size, facts) for (size,) in alternatives])
        )
    choices = [
        Choice(label=_label(values), delta=delta_of(paths, values), gated=name.startswith("optimization"))
        for values in alternatives
    ]
    ordered = all(_is_number(value) for values in alternatives for value in values) and len(axes) == 1
    if ordered:
        choices = [
            choice for _, choice in sorted(zip(alternatives, choices, strict=True), key=lambda p: p[0])
        ]
    return Dimension(name=name, choices=tuple(choices), ordered=ordered)


def _instances(delta: Mapping[str, Any], facts: ModelFacts) -> Choice:
    """Groups that do not say what they run on run on what the model runs on."""
    groups = [{"kind": facts.instance_kind, **group} for group in delta["instance_group"]]
    amount = sum(int(group.get("count", 1)) * max(1, len(group.get("gpus", ()))) for group in groups)
    label = " + ".join(
        f"{group.get('count', 1)}:{str(group['kind']).removeprefix('KIND_')}" for group in groups
    )
    return Choice(label=label, delta={"instance_group": groups}, amount=amount)


def _batch_size(size: int, facts: ModelFacts) -> Choice:
    delta = automatic_delta(facts, 1, size)
    del delta["instance_group"]
    return Choice(label=str(size), delta=delta, amount=max(1, size))


def _by_amount(choices: Sequence[Choice]) -> tuple[Choice, ...]:
    return tuple(sorted(choices, key=lambda choice: choice.amount))


def _label(values: Sequence[Any]) -> str:
    return ", ".join(str(value) if value != {} else "as it is" for value in values)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
