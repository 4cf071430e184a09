"""Best compromises: the measurements that no other beats in everything."""

from collections.abc import Sequence

from tpx.analyzer.objectives import metric, satisfies
from tpx.analyzer.results.goals import Goals
from tpx.analyzer.results.measurement import Measurement

Figures = tuple[float, ...]


def figures_of(measurement: Measurement, tags: Sequence[str]) -> Figures | None:
    """What a measurement has of these metrics, more being better; None where one is missing."""
    found = []
    for tag in tags:
        measured = metric(tag)
        value = measured.value(measurement)
        if value is None:
            return None
        found.append(value if measured.better == "higher" else -value)
    return tuple(found)


def dominates(ours: Figures, theirs: Figures) -> bool:
    """Whether the first is nowhere worse and somewhere better."""
    return ours != theirs and all(a >= b for a, b in zip(ours, theirs, strict=True))


def front(measurements: Sequence[Measurement], tags: Sequence[str], goals: Goals) -> list[Measurement]:
    """The measurements that keep the constraints and that none of the others dominates, in their order."""
    known = [(m, figures) for m in measurements if (figures := figures_of(m, tags)) and satisfies(m, goals)]
    return [m for m, own in known if not any(dominates(other, own) for _, other in known)]
