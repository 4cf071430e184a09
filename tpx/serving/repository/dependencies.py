"""Which models need which: in what order to load them, and who goes with whom. No files, no threads."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from tpx.serving.model_id import ModelId

Requirements = Mapping[ModelId, Collection[ModelId]]
"""Of each ensemble, the models it is made of; a model that is no ensemble may be left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOrder:
    """Models, each behind those it needs; and those that can never be, each with the circle it is part of."""

    models: tuple[ModelId, ...]
    circular: Mapping[ModelId, str]


def meant(written: ModelId, namespace: str, there: Iterable[ModelId]) -> frozenset[ModelId]:
    """The model that a step of an ensemble in `namespace` means, of those `there` that have its name.

    The one that it names; else the one in its own namespace; else the only one. Where there are several, all
    of them; where there is none, the one that is missing.
    """
    own = written if written.namespace else ModelId(written.name, namespace)
    candidates = frozenset(there)
    if written.namespace or own in candidates or not candidates:
        return frozenset([own])
    return candidates


def plan_order(requires: Requirements) -> LoadOrder:
    """In what order to load the keys of `requires`; what else they need is there, or is not."""
    models: list[ModelId] = []
    circles: dict[ModelId, str] = {}
    done: set[ModelId] = set()
    for root in sorted(requires):
        _visit(root, requires, models, circles, done)
    return LoadOrder(models=tuple(model for model in models if model not in circles), circular=circles)


def _visit(
    root: ModelId,
    requires: Requirements,
    models: list[ModelId],
    circles: dict[ModelId, str],
    done: set[ModelId],
) -> None:
    """Depth first without recursion: who wrote the models decides how deep they are."""
    path = {} if root in done else {root: iter(sorted(requires[root]))}
    while path:
        model = next(reversed(path))
        needed = next(path[model], None)
        if needed is None:
            del path[model]
            done.add(model)
            models.append(model)
        elif needed in path:
            around = list(path)[list(path).index(needed) :]
            circles.update(dict.fromkeys(around, " -> ".join(map(str, [*around, needed]))))
        elif needed in requires and needed not in done:
            path[needed] = iter(sorted(requires[needed]))


def composing(model: ModelId, requires: Requirements) -> set[ModelId]:
    """What a model needs, and what that needs."""
    found: set[ModelId] = set()
    waiting = [model]
    while waiting:
        for needed in requires.get(waiting.pop(), ()):
            if needed not in found:
                found.add(needed)
                waiting.append(needed)
    return found


def dependents(models: Iterable[ModelId], requires: Requirements) -> list[ModelId]:
    """Who needs one of these models, and who needs those, each behind what it needs."""
    changed, found = set(models), []
    for model in plan_order(requires).models:
        if not changed.isdisjoint(requires[model]):
            changed.add(model)
            found.append(model)
    return found


def plan_cascade(model: ModelId, requires: Requirements, asked: Collection[ModelId]) -> list[ModelId]:
    """What to unload with an ensemble, beginning with it: what it is made of, unless somebody has asked for
    that by its own name, or another ensemble needs it."""
    left = {key: set(needed) for key, needed in requires.items()}
    gone, waiting = [], [model]
    while waiting:
        current = waiting.pop(0)
        gone.append(current)
        for needed in sorted(left.pop(current, ())):
            kept = needed in asked or any(needed in others for others in left.values())
            if not kept and needed not in gone and needed not in waiting:
                waiting.append(needed)
    return gone
