"""What to load and what to unload, given what was found and what is served: no files, no threads."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tpx.errors import UsageError
from tpx.serving.model_id import ModelId
from tpx.serving.repository.stamps import Stamps

ControlMode = Literal["none", "poll", "explicit", "lazy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a version is made from; one made from the same again would be the same."""

    config: bytes
    """Serialized, without the version policy: that decides which versions there are, not what they are."""
    groups: bytes
    """Its instance groups, which can change while the version serves."""
    directory: str
    shared: str
    files: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Versions, ascending: to load, to leave as they are, but for the instances of some, and to unload once
    the others are loaded."""

    load: tuple[int, ...]
    keep: tuple[int, ...]
    regroup: tuple[int, ...] = ()
    """Of those that are kept."""
    unload: tuple[int, ...]


def plan_load(
    wanted: Mapping[int, Recipe],
    served: Mapping[int, Recipe],
    may_regroup: Callable[[int], bool] = lambda version: True,  # noqa: ARG005
) -> Plan:
    """From what is served to what is wanted: a version that would become what it is stays untouched, and one
    that would differ in its instances alone gets others, where it may."""
    keep = {version for version, recipe in wanted.items() if served.get(version) == recipe}
    regroup = {
        version
        for version in wanted.keys() & served.keys() - keep
        if replace(served[version], groups=wanted[version].groups) == wanted[version] and may_regroup(version)
    }
    return Plan(
        load=tuple(sorted(wanted.keys() - keep - regroup)),
        keep=tuple(sorted(keep | regroup)),
        regroup=tuple(sorted(regroup)),
        unload=tuple(sorted(served.keys() - wanted.keys())),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Models: to load, be it for the first time or again, and to unload."""

    load: tuple[ModelId, ...]
    unload: tuple[ModelId, ...]


def plan_poll(found: Mapping[ModelId, Stamps | None], known: Mapping[ModelId, Stamps | None]) -> Changes:
    """What a look at the repositories asks for.

    `found` has no stamps for a model that is there but cannot be told what it is: it stays as it was. `known`
    has none for a model whose last load failed: it is tried again.
    """
    return Changes(
        load=tuple(m for m, stamps in sorted(found.items()) if stamps is not None and known.get(m) != stamps),
        unload=tuple(sorted(known.keys() - found.keys())),
    )


def plan_start(mode: ControlMode, startup: Sequence[str], found: Iterable[ModelId]) -> list[ModelId]:
    """The models to load at startup, of those that the repositories have, and those that they should have.

    Raises UsageError.
    """
    if mode not in ("explicit", "lazy"):
        if startup:
            raise UsageError(
                "Use of '--load-model' requires setting '--model-control-mode=explicit' as well."
            )
        return sorted(found)
    if "*" not in startup:
        by_name: dict[str, list[ModelId]] = {}
        for model in sorted(found):
            by_name.setdefault(model.name, []).append(model)
        return [m for name in dict.fromkeys(startup) for m in by_name.get(name, [ModelId(name)])]
    if len(startup) > 1:
        raise UsageError("Wildcard model name '*' must be the ONLY startup model if specified at all.")
    return sorted(found)
