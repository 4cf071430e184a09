"""When requests of an open loop are due: pure, seeded, without a clock.

A schedule is a course of offsets in ns from the start of the load, never falling, handed out in blocks.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tpx.perf.levels import Level
from tpx.perf.plan import LoadPlan
from tpx.perf.seeds import level_seed

Offsets = npt.NDArray[np.int64]

BLOCK = 4096


@dataclass(frozen=True, slots=True)
class Share:
    """One of `of` workers among which a load is dealt out; number 0 of 1 is all of it."""

    number: int = 0
    of: int = 1

    def part(self, whole: int) -> int:
        """This one's of `whole` equal things: the first ones get what is over."""
        return whole // self.of + (self.number < whole % self.of)

    def part_in_turn(self, whole: int, things: int = 0) -> int:
        """This one's of `whole` requests of which `things`, dealt out like this too, have one after the
        other; 0 where each of the sharers is one."""
        things = things or self.of
        return whole // things * self.part(things) + self.part(whole % things)

    def picks(self, first: int, count: int, things: int = 0) -> npt.NDArray[np.bool_]:
        """Which of `count` such requests, numbered from `first`, are this one's."""
        turns = np.arange(first, first + count) % (things or self.of)
        return np.asarray(turns % self.of == self.number)

    def part_by(self, whole: int, things: int) -> int:
        """This one's of `whole` requests where each of `things`, dealt out like this too, sends as many."""
        before = sum(Share(i, self.of).part(things) for i in range(self.number))
        return whole * (before + self.part(things)) // things - whole * before // things


ALL = Share()


def offsets(level: Level, plan: LoadPlan, share: Share = ALL) -> Iterator[Offsets]:
    """The schedule of a rate or of intervals, without end: all workers' shares together are the whole.

    Everybody computes the whole schedule and takes every `share.of`-th of it, or what its sequences have when
    all take turns, so that the requests are the same ones, at the same times, however many workers there are.
    """
    return _dealt(_whole(level, plan), share, plan.sequences)


def _whole(level: Level, plan: LoadPlan) -> Iterator[Offsets]:
    if plan.intervals is not None:
        return repeated(plan.intervals.gaps_ns)
    arrivals = plan.arrivals
    if arrivals.distribution == "constant":
        return evenly(level.value)
    if arrivals.distribution == "burst":
        return in_bursts(level.value, arrivals.burst)
    shape = 1.0 if arrivals.distribution == "poisson" else arrivals.shape
    return at_random(level.value, shape, level_seed(plan.seed, level))


def evenly(rate: float) -> Iterator[Offsets]:
    """One gap apart, the first one gap after the start; computed from the number, so nothing adds up."""
    return _computed(lambda numbers: (numbers + 1) * (1e9 / rate))


def in_bursts(rate: float, size: int) -> Iterator[Offsets]:
    """`size` at a time, the first ones at the start."""
    return _computed(lambda numbers: numbers // size * (size * 1e9 / rate))


def _computed(at: Callable[[Offsets], npt.NDArray[np.floating[Any]]]) -> Iterator[Offsets]:
    first = 0
    while True:
        yield np.rint(at(np.arange(first, first + BLOCK))).astype(np.int64)
        first += BLOCK


def at_random(rate: float, shape: float, seed: np.random.SeedSequence) -> Iterator[Offsets]:
    """Gaps of a gamma distribution with mean 1/rate; shape 1 is a Poisson process."""
    rng = np.random.default_rng(seed)
    last = 0.0
    while True:
        times = last + np.cumsum(rng.standard_gamma(shape, BLOCK)) * (1e9 / (rate * shape))
        last = float(times[-1])
        yield np.rint(times).astype(np.int64)


def repeated(gaps_ns: tuple[int, ...]) -> Iterator[Offsets]:
    """The gaps over and over, exactly: the first request comes one gap after the start."""
    turns = max(1, BLOCK // len(gaps_ns))
    one = np.cumsum(np.asarray(gaps_ns, np.int64))
    block = (one + np.arange(turns, dtype=np.int64)[:, None] * one[-1]).ravel()
    last = 0
    while True:
        yield last + block
        last += int(block[-1])


def listed(times_ns: Offsets, share: Share = ALL) -> Iterator[Offsets]:
    """A fixed schedule, once; times need not be in order."""
    yield np.sort(times_ns, kind="stable")[share.number :: share.of]


def at_once(count: int, share: Share = ALL, sequences: int = 0) -> Iterator[Offsets]:
    """`count` requests due at the start."""
    left = share.part_in_turn(count, sequences)
    while left > 0:
        yield np.zeros(min(left, BLOCK), np.int64)
        left -= BLOCK


def _dealt(blocks: Iterator[Offsets], share: Share, sequences: int) -> Iterator[Offsets]:
    first = 0
    for block in blocks:
        yield block[share.picks(first, len(block), sequences)]
        first += len(block)
