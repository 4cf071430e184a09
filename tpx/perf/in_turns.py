"""`--ab`: one run over several servers that take turns."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from tpx.errors import MeasurementError, UsageError
from tpx.perf.answers.compare import Difference, Strictness
from tpx.perf.answers.turns import FEWEST_ROUNDS, Figures, Rounds, differences, figures_of, turns
from tpx.perf.measure import measure_level
from tpx.perf.options import PerfConfig
from tpx.perf.run import open_target, run_settings
from tpx.perf.settings import Level, LevelRange, LevelSettings
from tpx.perf.target import Target

BLOCK_MS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """What came of it: of each server but the first, its differences from the first."""

    servers: tuple[str, ...]
    levels: tuple[Rounds, ...]
    differences: tuple[tuple[Difference, ...], ...]
    strictness: Strictness
    interrupted: bool = False

    @property
    def regressions(self) -> int:
        return sum(d.finding == "worse" for found in self.differences for d in found)


async def run_in_turns(
    config: PerfConfig, *, stop: asyncio.Event, said: Callable[[str], None], in_process: str = ""
) -> Turns:
    """Measure every load on all servers of `config.ab`, in blocks; `said` hears how it goes.

    Setting `stop` ends it with the rounds until then.
    """
    strictness = Strictness(alpha=config.alpha, min_effect=config.min_effect)
    levels: list[Rounds] = []
    values = _values(config.levels)
    async with AsyncExitStack() as stack:
        targets = [
            await stack.enter_async_context(open_target(replace(config, url=url, ab=()), in_process))
            for url in config.ab
        ]
        settings = _block_settings(config, targets[0])
        for value in values:
            if stop.is_set():
                break
            level = Level(config.levels.mode, value)
            said(f"{level}: {config.ab_blocks} blocks of each of {len(targets)} servers")
            levels.append(await _rounds(targets, level, settings, config.ab_blocks, stop))
    if not any(len(level.blocks) >= FEWEST_ROUNDS for level in levels):
        raise MeasurementError(f"--ab: interrupted before {FEWEST_ROUNDS} rounds, nothing can be told")
    return Turns(
        servers=config.ab,
        levels=tuple(levels),
        differences=tuple(differences(levels, n, strictness) for n in range(1, len(config.ab))),
        strictness=strictness,
        interrupted=stop.is_set(),
    )


def _block_settings(config: PerfConfig, target: Target) -> LevelSettings:
    """A block is one window of exactly its length, unless that is too short for a few requests."""
    settings = run_settings(config, target)
    if settings.request_count:
        return settings
    return replace(
        settings, rule="ci", interval_ms=config.measurement_interval or BLOCK_MS, max_windows=1, objectives=()
    )


async def _rounds(
    targets: Sequence[Target], level: Level, settings: LevelSettings, rounds: int, stop: asyncio.Event
) -> Rounds:
    """One block of each server that is not counted, then the rounds."""
    for target in targets:
        await measure_level(target, level, settings, stop=stop)
    blocks: list[tuple[Figures, ...]] = []
    for order in turns(len(targets), rounds):
        found: dict[int, Figures] = {}
        for number in order:
            result = await measure_level(targets[number], level, settings, stop=stop)
            if stop.is_set():
                return Rounds(load=str(level), blocks=tuple(blocks))
            figures = figures_of(result)
            if figures is None:
                raise MeasurementError(f"--ab: {targets[number].url}, {level}: {result.reason}")
            found[number] = figures
        blocks.append(tuple(found[n] for n in range(len(targets))))
    return Rounds(load=str(level), blocks=tuple(blocks))


def _values(levels: LevelRange) -> list[float]:
    if levels.unbounded or levels.binary:
        raise UsageError(
            "--ab compares servers at given loads: give the range an end, and no --binary-search"
        )
    if levels.listed:
        return list(levels.listed)
    values: list[float] = []
    value: float | None = levels.start
    while value is not None:
        values.append(value)
        value = levels.after(value)
    return values
