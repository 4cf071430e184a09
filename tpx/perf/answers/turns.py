"""Servers measured in turns, block by block: what drifts meets all of them, and the differences of blocks
that lie side by side tell whether the servers differ."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tpx.perf.answers.compare import FIGURES, Difference, FigureName, Strictness, settle, shown
from tpx.perf.results import LevelResult
from tpx.perf.statistics.distributions import t_quantile, t_two_sided
from tpx.perf.statistics.ranks import holm

FEWEST_ROUNDS = 4

Figures = Mapping[FigureName, float]
"""Figures of one block: requests per second, or ns of latency."""


def turns(servers: int, rounds: int) -> Iterator[Sequence[int]]:
    """Whose turn it is in each round: forwards, then backwards, so that a steady drift cancels out."""
    forwards = list(range(servers))
    for number in range(rounds):
        yield forwards if number % 2 == 0 else forwards[::-1]


def figures_of(result: LevelResult) -> Figures | None:
    """Those of one block; None where no request succeeded."""
    if result.latency is None:
        return None
    return {
        "throughput": result.throughput_infer_per_s,
        "p50": float(result.latency.at(50.0)),
        "p99": float(result.latency.at(99.0)),
    }


def figures_text(figures: Figures) -> str:
    """In a line, each with its unit."""
    return ", ".join(f"{name} {shown(name, value)}" for name, value in figures.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """The blocks of one load: for each round the figures of each server."""

    load: str
    blocks: tuple[tuple[Figures, ...], ...]


def differences(levels: Sequence[Rounds], server: int, strictness: Strictness) -> tuple[Difference, ...]:
    """How a server differs from the first, at each load: Student's t of the logarithms of block by block
    ratios, corrected by Holm for the number of figures and loads."""
    usable = [level for level in levels if len(level.blocks) >= FEWEST_ROUNDS]
    raw = [_paired(level, server, compared.name, strictness) for level in usable for compared in FIGURES]
    better = {c.name: c.more_is_better for c in FIGURES}
    return tuple(
        settle(replace(d, p_value=p), strictness, more_is_better=better[d.figure])
        for d, p in zip(raw, holm([d.p_value for d in raw]), strict=True)
    )


def _paired(level: Rounds, server: int, figure: FigureName, strictness: Strictness) -> Difference:
    base = np.array([blocks[0][figure] for blocks in level.blocks])
    other = np.array([blocks[server][figure] for blocks in level.blocks])
    ratios = np.log(other / base)
    count, mean = len(ratios), float(ratios.mean())
    error = float(ratios.std(ddof=1)) / math.sqrt(count)
    reach = t_quantile(1 - strictness.alpha / 2, count - 1) * error
    before = float(np.exp(np.log(base).mean()))
    return Difference(
        load=level.load,
        figure=figure,
        before=before,
        after=before * math.exp(mean),
        low=math.expm1(mean - reach),
        high=math.expm1(mean + reach),
        p_value=t_two_sided(mean / error, count - 1) if error > 0 else float(mean == 0),
    )
