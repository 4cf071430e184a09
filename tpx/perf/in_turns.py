"""`--ab` and `--ab-client`: measure servers, or clients on one server, in turns, block by block.

Drift affects all alike, and the differences between adjacent blocks show whether they differ.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from time import perf_counter_ns

import numpy as np

from tpx.errors import MeasurementError
from tpx.perf.clients.transport import ClientName
from tpx.perf.compare import FIGURES, Difference, FigureName, settled, shown
from tpx.perf.levels import Level
from tpx.perf.options import SessionSpec
from tpx.perf.options.measuring import ComparingSpec, Strictness
from tpx.perf.results import LevelResult
from tpx.perf.session import Session
from tpx.perf.settings import LevelSettings
from tpx.perf.statistics.findings import RoundTable

BLOCK_MS = 500
FEWEST_ROUNDS = 4

Figures = Mapping[FigureName, float]
"""Figures of one block: requests per second, or latency in ns."""
Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """The blocks of one load: the figures of each contender, per round."""

    load: str
    blocks: tuple[tuple[Figures, ...], ...]
    block_s: float = BLOCK_MS / 1e3
    """Duration of a block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRounds:
    """The rounds of all loads, and how each other contender differs from the first."""

    names: tuple[str, ...]
    levels: tuple[Rounds, ...]
    differences: tuple[tuple[Difference, ...], ...]
    interrupted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A server, or a client, that takes turns with others."""

    name: str
    spec: SessionSpec


def contenders(spec: SessionSpec) -> tuple[Contender, ...]:
    """Return the runs that a comparison measures in turns, the baseline first."""
    alone = replace(spec, comparing=ComparingSpec(), strictness=Strictness())
    if spec.comparing.ab_client:
        clients: tuple[ClientName, ...] = ("tpx", "library")
        specs = [replace(alone, wire=replace(spec.wire, client=client)) for client in clients]
        return tuple(Contender(name=each.client, spec=each) for each in specs)
    return tuple(
        Contender(name=url, spec=replace(alone, target=replace(spec.target, url=url)))
        for url in spec.comparing.ab
    )


async def run_in_turns(
    spec: SessionSpec, *, stop: asyncio.Event, said: Notify, in_process: str = ""
) -> ComparisonRounds:
    """Measure every load with all contenders, in blocks; `said` receives the progress.

    Setting `stop` ends it with the rounds measured so far.
    """
    comparing, levels, rivals = spec.comparing, [], contenders(spec)
    async with AsyncExitStack() as stack:
        sessions = [
            await stack.enter_async_context(Session(each.spec, stop=stop, in_process=in_process))
            for each in rivals
        ]
        settings = sessions[0].settings
        if not settings.request_count:
            # a block is one window of its length, or longer if that gives too few requests
            interval_ms = spec.windows.measurement_interval or BLOCK_MS
            settings = replace(settings, rule="ci", interval_ms=interval_ms, max_windows=1, objectives=())
        for value in spec.levels.values():
            if stop.is_set():
                break
            level = Level(spec.levels.mode, value)
            what = "clients" if comparing.ab_client else "servers"
            said(f"{level}: {comparing.ab_blocks} blocks of each of {len(sessions)} {what}")
            blocks: list[tuple[Figures, ...]] = []
            for session in sessions:
                await session.measure(level, settings)  # warm-up block, not counted
            began_ns = perf_counter_ns()
            for order in turns(len(sessions), comparing.ab_blocks):
                found = await _measure_round(rivals, sessions, order, level, settings)
                if stop.is_set():
                    break
                blocks.append(found)
                if spec.output.verbose:
                    for rival, figures in zip(rivals, found, strict=True):
                        text = ", ".join(f"{name} {shown(name, value)}" for name, value in figures.items())
                        said(f"  round {len(blocks)}, {rival.name}: {text}")
            block_s = (perf_counter_ns() - began_ns) / 1e9 / len(sessions) / max(1, len(blocks))
            levels.append(Rounds(load=str(level), blocks=tuple(blocks), block_s=block_s))
    if not any(len(level.blocks) >= FEWEST_ROUNDS for level in levels):
        raise MeasurementError(
            f"{comparing.flag}: interrupted before {FEWEST_ROUNDS} rounds, no conclusion is possible"
        )
    return ComparisonRounds(
        names=tuple(each.name for each in rivals),
        levels=tuple(levels),
        differences=tuple(differences(levels, n, spec.strictness) for n in range(1, len(rivals))),
        interrupted=stop.is_set(),
    )


def turns(count: int, rounds: int) -> Iterator[Sequence[int]]:
    """Yield the order of each round: forwards, then backwards, so that a steady drift cancels out."""
    forwards = list(range(count))
    for number in range(rounds):
        yield forwards if number % 2 == 0 else forwards[::-1]


async def _measure_round(
    rivals: Sequence[Contender],
    sessions: Sequence[Session],
    order: Sequence[int],
    level: Level,
    settings: LevelSettings,
) -> tuple[Figures, ...]:
    """Measure a block of each contender; return nothing if interrupted."""
    found: dict[int, Figures] = {}
    for number in order:
        result = await sessions[number].measure(level, settings)
        found[number] = figures_of(result)
        if result.interrupted:
            return ()
        if not found[number]:
            raise MeasurementError(f"{rivals[number].name}, {level}: {result.reason}")
    return tuple(found[number] for number in range(len(sessions)))


def figures_of(result: LevelResult) -> Figures:
    """Return the figures of one block; empty if no request succeeded."""
    if result.latency is None:
        return {}
    p50, p99 = (float(result.latency.at(percentile)) for percentile in (50.0, 99.0))
    return {"throughput": result.throughput_infer_per_s, "p50": p50, "p99": p99}


def differences(levels: Sequence[Rounds], rival: int, strictness: Strictness) -> tuple[Difference, ...]:
    """Return how a contender differs from the first at each load.

    No server is started anew between rounds, so only the rounds' own residual variance counts.
    """
    usable = [level for level in levels if len(level.blocks) >= FEWEST_ROUNDS]
    raw = [_compare_blocks(level, rival, name) for level in usable for name in FIGURES]
    return settled(raw, strictness)


def _compare_blocks(level: Rounds, rival: int, figure: FigureName) -> Difference:
    logs = np.log([[figures[figure] for figures in blocks] for blocks in level.blocks])
    table = RoundTable(
        {
            str(place): {number: (value,) for number, value in enumerate(own)}
            for place, own in enumerate(logs.T.tolist())
        },
        moderated=False,
    )
    return Difference(
        load=level.load,
        figure=figure,
        before=float(np.exp(logs[:, 0].mean())),
        contrast=table.contrast(str(rival), "0"),
        repeat_s=level.block_s,
    )
