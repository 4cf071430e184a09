"""What the networks of the examples are asked to see."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest


@dataclass(frozen=True, slots=True, kw_only=True)
class Digits:
    """Images of 8 by 8 pixels, and what each shows."""

    images: npt.NDArray[Any]
    target: npt.NDArray[Any]


@pytest.fixture(scope="session")
def digits() -> Digits:
    """Those that they were trained on, and others, from scikit-learn's file: its import takes seconds."""
    found = find_spec("sklearn")
    assert found is not None
    assert found.origin is not None
    table = np.loadtxt(Path(found.origin).parent / "datasets/data/digits.csv.gz", delimiter=",")
    return Digits(images=table[:, :-1].reshape(-1, 8, 8), target=table[:, -1].astype(int))
