"""The greatest load that still keeps the constraints, between two that were measured, by bisection."""

from collections.abc import Callable

from tpx.analyzer.objectives import satisfies
from tpx.analyzer.results.measurement import Decision, Load, Measurement, Trial, Variant
from tpx.analyzer.search.base import Limits, LoadSpace
from tpx.analyzer.search.known import Asking, Known


def refine(variant: Variant, known: Known, decide: Callable[[str], None], max_steps: int) -> Asking[None]:
    """Measure between the best load that keeps the constraints and its neighbours that do not.

    Where not even the least load keeps them, smaller ones down to 1 are tried.
    """
    for batch_size in sorted({m.load.batch_size for m in known.of(variant.name)}):
        for passing, failing in _boundaries(variant, known, batch_size):
            yield from _bisect(variant, known, (passing, failing), decide, max_steps)


def refine_best(space: LoadSpace, known: Known, limits: Limits, decisions: list[Decision]) -> Asking[None]:
    """Refine the best configurations and the default, where there are constraints and no listed loads."""
    if space.listed or not known.goals.all_constraints:
        return
    ranked = known.ranked()
    chosen = ranked[: limits.finalists] + [v for v in ranked[limits.finalists :] if v.is_default]
    for variant in chosen:

        def decide(text: str, name: str = variant.name) -> None:
            decisions.append(Decision(variant=name, text=text))

        yield from refine(variant, known, decide, limits.refine_steps)


def _boundaries(variant: Variant, known: Known, batch_size: int) -> list[tuple[int, Load]]:
    """Loads (kept, not kept) with nothing measured between them, around the best that is kept; where none is
    kept, 0 stands for it."""
    measured = sorted(
        (m for m in known.of(variant.name) if m.load.batch_size == batch_size), key=lambda m: m.load.value
    )
    keeps = [satisfies(m, known.goals) for m in measured]
    if not measured or all(keeps):
        return []
    if not any(keeps):
        least = measured[0].load
        return [(0, least)] if least.value > 1 and _latency_binds(known) else []
    best = max(range(len(measured)), key=lambda i: known.merit(measured[i]))
    sides = [i for i in (best + 1, best - 1) if 0 <= i < len(measured) and not keeps[i]]
    return [(measured[best].load.value, measured[i].load) for i in sides]


def _latency_binds(known: Known) -> bool:
    """Whether less load can help: some figure has a greatest value."""
    return any(constraint.bound == "max" for constraint in known.goals.all_constraints)


def _bisect(
    variant: Variant,
    known: Known,
    between: tuple[int, Load],
    decide: Callable[[str], None],
    max_steps: int,
) -> Asking[None]:
    passing, least = between
    failing = least.value
    for _ in range(max_steps):
        middle = (passing + failing) // 2
        if middle in (passing, failing) or middle < 1:
            break
        outcome = yield Trial(variant=variant, load=least.scaled(middle))
        kept = isinstance(outcome, Measurement) and satisfies(outcome, known.goals)
        passing, failing = (middle, failing) if kept else (passing, middle)
    word = least.kind.replace("_", " ")
    if passing:
        decide(f"the constraints hold at {word} {passing}, not at {failing}")
    else:
        decide(f"the constraints do not hold down to {word} {failing}")
