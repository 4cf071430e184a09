"""What chance is drawn from: another seed for each level, the same one in each run."""

import zlib

import numpy as np

from tpx.perf.settings import Level


def level_seed(seed: int, level: Level) -> np.random.SeedSequence:
    """The seed of a level in a run whose seed is `seed`."""
    return np.random.SeedSequence([seed, zlib.crc32(repr((level.mode, float(level.value))).encode())])
