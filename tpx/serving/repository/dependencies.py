"""Which models need which: in what order to load them, and who goes with whom. No files, no threads."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

Requirements = Mapping[str, Collection[str]]
"""Of each ensemble, the models it is made of; a model that is no ensemble may be left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOrder:
    """Names, each behind those it needs; and those that can never be, each with the circle it is part of."""

    names: tuple[str, ...]
    circular: Mapping[str, str]


def plan_order(requires: Requirements) -> LoadOrder:
    """In what order to load the keys of `requires`; what else they need is there, or is not."""
    names: list[str] = []
    circles: dict[str, str] = {}
    done: set[str] = set()
    for root in sorted(requires):
        _visit(root, requires, names, circles, done)
    return LoadOrder(names=tuple(name for name in names if name not in circles), circular=circles)


def _visit(
    root: str, requires: Requirements, names: list[str], circles: dict[str, str], done: set[str]
) -> None:
    """Depth first without recursion: who wrote the models decides how deep they are."""
    path = {} if root in done else {root: iter(sorted(requires[root]))}
    while path:
        name = next(reversed(path))
        needed = next(path[name], None)
        if needed is None:
            del path[name]
            done.add(name)
            names.append(name)
        elif needed in path:
            around = list(path)[list(path).index(needed) :]
            circles.update(dict.fromkeys(around, " -> ".join([*around, needed])))
        elif needed in requires and needed not in done:
            path[needed] = iter(sorted(requires[needed]))


def composing(name: str, requires: Requirements) -> set[str]:
    """What a model needs, and what that needs."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        for needed in requires.get(waiting.pop(), ()):
            if needed not in found:
                found.add(needed)
                waiting.append(needed)
    return found


def dependents(names: Iterable[str], requires: Requirements) -> list[str]:
    """Who needs one of these models, and who needs those, each behind what it needs."""
    changed, found = set(names), []
    for name in plan_order(requires).names:
        if not changed.isdisjoint(requires[name]):
            changed.add(name)
            found.append(name)
    return found


def plan_cascade(name: str, requires: Requirements, asked: Collection[str]) -> list[str]:
    """What to unload with an ensemble, beginning with it: what it is made of, unless somebody has asked for
    that by its own name, or another ensemble needs it."""
    left = {key: set(needed) for key, needed in requires.items()}
    gone, waiting = [], [name]
    while waiting:
        current = waiting.pop(0)
        gone.append(current)
        for needed in sorted(left.pop(current, ())):
            kept = needed in asked or any(needed in others for others in left.values())
            if not kept and needed not in gone and needed not in waiting:
                waiting.append(needed)
    return gone
