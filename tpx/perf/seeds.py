"""What chance is drawn from: another seed for each level, the same one in each run."""

import zlib

import numpy as np

from tpx.perf.levels import Level


def level_seed(seed: int, level: Level) -> np.random.SeedSequence:
    """The seed of a level in a run whose seed is `seed`."""
    return np.random.SeedSequence([seed, zlib.crc32(repr((level.mode, float(level.value))).encode())])


def level_number(seed: int, level: Level) -> int:
    """The seed of a level as a number that can be printed."""
    return int(level_seed(seed, level).generate_state(1, np.uint64)[0])
