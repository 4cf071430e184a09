"""A server as machines really are: its speed wanders, and now and then all stands still."""

import math

import numpy as np

from tests.perf.simulated import Seconds, rows_of
from tpx.perf.records import Rows

MEAN_S = 0.001
BLOCK = 20
"""Requests of one speed."""
MEMORY_S = 0.2
"""For how long a speed lasts."""


def wandering(rng: np.random.Generator, count: int, spread: float) -> Seconds:
    """A factor for each of `count` requests: an autoregression whose standard deviation is `spread`."""
    keep = math.exp(-BLOCK * MEAN_S / MEMORY_S)
    blocks = count // BLOCK + 1
    noise = rng.normal(0, spread * math.sqrt(1 - keep**2), blocks).tolist()
    speed = rng.normal(0, spread)
    factors = np.empty(blocks)
    for i, push in enumerate(noise):
        speed = keep * speed + push
        factors[i] = 1 + speed
    return np.repeat(np.clip(factors, 0.5, 2), BLOCK)[:count]


def noisy_rows(
    rng: np.random.Generator,
    seconds: float,
    *,
    concurrency: int = 4,
    slower: float = 1.0,
    spread: float = 0.05,
) -> Rows:
    """A closed loop on a server whose speed wanders by `spread` and that pauses for 20 ms every few seconds;
    `slower` is what is to be found."""
    count = int(seconds / MEAN_S / slower * 1.3) + 100
    times = rng.lognormal(0, 0.4, count) * MEAN_S / math.exp(0.08) * wandering(rng, count, spread) * slower
    times[rng.random(count) < MEAN_S / 3] += 0.02
    ends = np.cumsum(times)
    starts = np.concatenate((np.zeros(concurrency), ends))[:count]
    return rows_of(starts, ends)
