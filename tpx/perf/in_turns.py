"""`--ab`: one run over several servers that take turns."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from tpx.errors import MeasurementError
from tpx.perf.answers.compare import Difference, Strictness
from tpx.perf.answers.turns import (
    FEWEST_ROUNDS,
    Figures,
    Rounds,
    differences,
    figures_of,
    figures_text,
    turns,
)
from tpx.perf.levels import Level, LevelRange
from tpx.perf.options import SessionSpec
from tpx.perf.options.measuring import ComparingSpec
from tpx.perf.session import Session
from tpx.perf.settings import LevelSettings

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
    config: SessionSpec, *, stop: asyncio.Event, said: Callable[[str], None], in_process: str = ""
) -> Turns:
    """Measure every load on all servers of `config.comparing.ab`, in blocks; `said` hears how it goes.

    Setting `stop` ends it with the rounds until then.
    """
    strictness = Strictness(alpha=config.comparing.alpha, min_effect=config.comparing.min_effect)
    levels: list[Rounds] = []
    values = _values(config.levels)
    async with AsyncExitStack() as stack:
        sessions = [
            await stack.enter_async_context(Session(_of_one(config, url), stop=stop, in_process=in_process))
            for url in config.comparing.ab
        ]
        settings = _block_settings(config, sessions[0].settings)
        for value in values:
            if stop.is_set():
                break
            level = Level(config.levels.mode, value)
            said(f"{level}: {config.comparing.ab_blocks} blocks of each of {len(sessions)} servers")
            rounds = _Rounds(sessions, level, settings, stop)
            levels.append(
                await rounds.measured(config.comparing.ab_blocks, said if config.output.verbose else _unsaid)
            )
    if not any(len(level.blocks) >= FEWEST_ROUNDS for level in levels):
        raise MeasurementError(f"--ab: interrupted before {FEWEST_ROUNDS} rounds, nothing can be told")
    return Turns(
        servers=config.comparing.ab,
        levels=tuple(levels),
        differences=tuple(differences(levels, n, strictness) for n in range(1, len(config.comparing.ab))),
        strictness=strictness,
        interrupted=stop.is_set(),
    )


def _of_one(config: SessionSpec, url: str) -> SessionSpec:
    """The run of one of the servers, without what is said of the comparison."""
    target = replace(config.target, url=url)
    return replace(config, target=target, comparing=ComparingSpec())


def _block_settings(config: SessionSpec, settings: LevelSettings) -> LevelSettings:
    """A block is one window of exactly its length, unless that is too short for a few requests."""
    if settings.request_count:
        return settings
    return replace(
        settings,
        rule="ci",
        interval_ms=config.windows.measurement_interval or BLOCK_MS,
        max_windows=1,
        objectives=(),
    )


def _unsaid(_: str) -> None:
    """Blocks are told of only where the user asked for more."""


@dataclass(frozen=True, slots=True)
class _Rounds:
    """One load on all servers."""

    sessions: Sequence[Session]
    level: Level
    settings: LevelSettings
    stop: asyncio.Event

    async def measured(self, rounds: int, said: Callable[[str], None]) -> Rounds:
        """One block of each server that is not counted, then the rounds."""
        for session in self.sessions:
            await session.measure(self.level, self.settings)
        blocks: list[tuple[Figures, ...]] = []
        for order in turns(len(self.sessions), rounds):
            found: dict[int, Figures] = {}
            for number in order:
                session = self.sessions[number]
                result = await session.measure(self.level, self.settings)
                if self.stop.is_set():
                    return Rounds(load=str(self.level), blocks=tuple(blocks))
                figures = figures_of(result)
                if figures is None:
                    raise MeasurementError(f"--ab: {session.spec.address}, {self.level}: {result.reason}")
                found[number] = figures
                said(f"  round {len(blocks) + 1}, {session.spec.address}: {figures_text(figures)}")
            blocks.append(tuple(found[n] for n in range(len(self.sessions))))
        return Rounds(load=str(self.level), blocks=tuple(blocks))


def _values(levels: LevelRange) -> list[float]:
    if levels.listed:
        return list(levels.listed)
    values: list[float] = []
    value: float | None = levels.start
    while value is not None:
        values.append(value)
        value = levels.after(value)
    return values
