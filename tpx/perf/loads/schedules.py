"""Due times of an open loop's requests: pure, seeded, without a clock.

A schedule is a non-decreasing series of offsets in ns from the start of the load, yielded in blocks.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tpx.perf.levels import ALL, Level, Share, level_seed
from tpx.perf.settings import LevelSettings

Offsets = npt.NDArray[np.int64]

BLOCK = 4096
NEVER = 1 << 62


def offsets(level: Level, settings: LevelSettings, share: Share = ALL) -> Iterator[Offsets]:
    """Yield the endless schedule of a rate or of intervals; the shares of all workers make up the
    whole.

    Each worker computes the whole schedule and takes every `share.of`-th time, or the times of its
    sequences if all sequences take turns. So the requests and their times do not depend on the number
    of workers.
    """
    pace = settings.pace
    if settings.intervals is not None:
        blocks = repeated(settings.intervals.gaps_ns)
    elif pace.request_distribution == "constant":
        blocks = evenly(level.value)
    elif pace.request_distribution == "burst":
        blocks = in_bursts(level.value, pace.burst_size)
    else:
        shape = 1.0 if pace.request_distribution == "poisson" else pace.gamma_shape
        blocks = at_random(level.value, shape, level_seed(settings.seed, level))
    first = 0
    for block in blocks:
        yield block[share.picks(first, len(block), settings.sequences)]
        first += len(block)


def evenly(rate: float) -> Iterator[Offsets]:
    """Yield evenly spaced times, the first one gap after the start.

    Each time is computed from its number, so rounding errors do not accumulate.
    """
    return _computed(lambda numbers: (numbers + 1) * (1e9 / rate))


def in_bursts(rate: float, size: int) -> Iterator[Offsets]:
    """Yield times in groups of `size`, the first group at the start."""
    return _computed(lambda numbers: numbers // size * (size * 1e9 / rate))


def _computed(at: Callable[[Offsets], npt.NDArray[np.floating[Any]]]) -> Iterator[Offsets]:
    first = 0
    while True:
        yield np.rint(at(np.arange(first, first + BLOCK))).astype(np.int64)
        first += BLOCK


def at_random(rate: float, shape: float, seed: np.random.SeedSequence) -> Iterator[Offsets]:
    """Yield times with gamma-distributed gaps of mean 1/rate; shape 1 is a Poisson process."""
    rng = np.random.default_rng(seed)
    last = 0.0
    while True:
        times = last + np.cumsum(rng.standard_gamma(shape, BLOCK)) * (1e9 / (rate * shape))
        last = float(times[-1])
        yield np.rint(times).astype(np.int64)


def repeated(gaps_ns: tuple[int, ...]) -> Iterator[Offsets]:
    """Repeat the gaps exactly and endlessly; the first request is due one gap after the start."""
    turns = max(1, BLOCK // len(gaps_ns))
    one = np.cumsum(np.asarray(gaps_ns, np.int64))
    block = (one + np.arange(turns, dtype=np.int64)[:, None] * one[-1]).ravel()
    last = 0
    while True:
        yield last + block
        last += int(block[-1])


def listed(times_ns: Offsets, share: Share = ALL) -> Iterator[Offsets]:
    """Yield a fixed schedule once; `times_ns` may be unordered."""
    yield np.sort(times_ns, kind="stable")[share.number :: share.of]


def at_once(count: int, share: Share = ALL, sequences: int = 0) -> Iterator[Offsets]:
    """Yield `count` times at the start."""
    left = share.part_in_turn(count, sequences)
    while left > 0:
        yield np.zeros(min(left, BLOCK), np.int64)
        left -= BLOCK


class Timetable:
    """Iterates over a schedule's blocks as clock times; `due_ns` is the next time, or NEVER."""

    __slots__ = ("_at", "_left", "_origin_ns", "_schedule", "_times", "due_ns")

    def __init__(self, schedule: Iterator[Offsets]) -> None:
        self._schedule = schedule
        self._times: list[int] = []
        self._at = 0
        self._left = 0
        self._origin_ns = 0
        self.due_ns = NEVER

    @property
    def over(self) -> bool:
        """True when nothing more is due."""
        return self._left <= 0 and self.due_ns == NEVER

    def begin(self, count: int | None, origin_ns: int) -> None:
        """Go to the first time. At most `count` times follow; they count from `origin_ns`."""
        self._left = NEVER if count is None else count
        self._origin_ns = origin_ns
        self._refill()

    def end(self) -> None:
        """Drop the remaining times."""
        self._left = 0
        self.due_ns = NEVER

    def advance(self) -> None:
        """Advance to the next time."""
        self._left -= 1
        self._at = at = self._at + 1
        if self._left <= 0:
            self.due_ns = NEVER
        elif at < len(self._times):
            self.due_ns = self._times[at]
        else:
            self._refill()

    def skip(self, before_ns: int) -> int:
        """Advance to the first time at or after `before_ns`; return how many were skipped."""
        skipped = 0
        while self.due_ns < before_ns:
            skipped += 1
            self.advance()
        return skipped

    def _refill(self) -> None:
        """Load the schedule's next block."""
        self._at = 0
        self.due_ns = NEVER
        while self._left > 0:
            block = next(self._schedule, None)
            if block is None:
                self._left = 0
            elif len(block):
                self._times = (block + self._origin_ns).tolist()
                self.due_ns = self._times[0]
                return
