"""What is measured, as values: samples of several sides of a cell in turn, their medians and ratios."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from tpx.errors import TpxError

Sample = Mapping[str, float]
"""What one round yielded, by the names of FIGURES; a figure that a client does not tell is left out."""


@dataclass(frozen=True, slots=True)
class Figure:
    """How a measured figure is printed."""

    title: str
    decimals: int


FIGURES = {
    "throughput": Figure("infer/s", 0),
    "served": Figure("served/s", 0),
    "p50_us": Figure("p50 us", 0),
    "p90_us": Figure("p90 us", 0),
    "p99_us": Figure("p99 us", 0),
    "wire_p50_us": Figure("wire p50 us", 0),
    "wire_p90_us": Figure("wire p90 us", 0),
    "wire_p99_us": Figure("wire p99 us", 0),
    "p50_us_over_wire": Figure("p50 told / wire", 3),
    "p90_us_over_wire": Figure("p90 told / wire", 3),
    "p99_us_over_wire": Figure("p99 told / wire", 3),
    "server_cpu_us": Figure("server CPU us/inf", 1),
    "socket_us": Figure("of that sockets us", 1),
    "compute_us": Figure("ONNX Runtime us", 1),
    "over_floor": Figure("over the floor", 2),
    "tokens_per_s": Figure("tokens/s", 0),
    "token_cpu_us": Figure("server CPU us/token", 1),
    "engine_cpu_us": Figure("engine's process CPU us/token", 1),
    "first_token_ms": Figure("first token ms", 1),
    "client_cpu_us": Figure("client CPU us/inf", 1),
    "client_token_us": Figure("client CPU us/token", 1),
    "start_cpu_s": Figure("CPU s of a short run", 2),
    "first_ms": Figure("first token ms, p50", 2),
    "between_ms": Figure("between tokens ms, p50", 2),
    "p50_range": Figure("p50 range %", 1),
    "run_cpu_s": Figure("CPU s of the run", 2),
    "failed": Figure("failed", 0),
    "wall_s": Figure("wall s", 0),
    "measurements": Figure("measurements", 0),
    "configurations": Figure("configurations", 0),
    "gain": Figure("gain it tells", 2),
    "ready_s": Figure("ready s", 2),
    "rss_mb": Figure("RSS MB", 0),
    "pss_mb": Figure("PSS MB", 0),
    "private_mb": Figure("private MB", 0),
    "beside_mb": Figure("RSS beside models MB", 0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One contender of a cell: its samples in the order of the rounds, and why rounds are missing."""

    name: str
    samples: tuple[Sample, ...]
    errors: tuple[str, ...] = ()

    def median(self, figure: str) -> float | None:
        values = [sample[figure] for sample in self.samples if figure in sample]
        return median(values) if values else None

    def spread(self, figure: str) -> float | None:
        """Half of the range over the median: 0.1 is plus or minus 10%."""
        values = [sample[figure] for sample in self.samples if figure in sample]
        middle = median(values) if values else 0.0
        return (max(values) - min(values)) / 2 / middle if middle else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One question with the same answer wanted of every side; the first side is the one that is judged."""

    bench: str
    name: str
    sides: tuple[Side, ...]

    def side(self, name: str) -> Side | None:
        return next((side for side in self.sides if side.name == name), None)

    def ratio(self, figure: str, over: str) -> float | None:
        """The first side's median over another's; None where one of them has none."""
        other = self.side(over)
        ours = self.sides[0].median(figure)
        theirs = other.median(figure) if other else None
        return ours / theirs if ours is not None and theirs else None

    def as_json(self) -> dict[str, Any]:
        return {
            "bench": self.bench,
            "cell": self.name,
            "sides": {
                side.name: {"samples": [dict(s) for s in side.samples], "errors": side.errors}
                for side in self.sides
            },
        }


def compare(bench: str, name: str, sides: Mapping[str, Callable[[], Sample]], rounds: int) -> Cell:
    """Measure every side once a round, for several rounds.

    Each round begins with another side, so that no side always follows the same one. A round that fails
    is missing from its side's samples, and its reason is among the errors.
    """
    samples: dict[str, list[Sample]] = {side: [] for side in sides}
    errors: dict[str, list[str]] = {side: [] for side in sides}
    names = list(sides)
    for i in range(rounds):
        for side in names[i % len(names) :] + names[: i % len(names)]:
            try:
                samples[side].append(sides[side]())
            except TpxError as exc:
                errors[side].append(exc.message)
                print(f"  {name}: {side}: {exc}", file=sys.stderr, flush=True)
    return Cell(
        bench=bench,
        name=name,
        sides=tuple(
            Side(name=side, samples=tuple(samples[side]), errors=tuple(errors[side])) for side in sides
        ),
    )
