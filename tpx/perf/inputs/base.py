"""The settings of what requests carry."""

from dataclasses import dataclass
from typing import Literal

from tpx.perf.settings import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSettings:
    """How inputs are made where the user brings no data."""

    kind: Literal["zero", "random"] = "random"
    batch_size: int = 1
    shapes: tuple[Shape, ...] = ()
    string_length: int = 128
    string_data: str | None = None
    seed: int = 0
