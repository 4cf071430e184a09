"""The loads of a configuration as steps of a ladder, also where each of several models has its own."""

import itertools
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from tpx.analyzer.results.measurement import Load, together
from tpx.analyzer.search.base import LoadSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one of several models takes of a load that they are put under together."""

    share: float
    batch_size: int = 1
    listed: tuple[int, ...] = ()
    """The loads that the user listed for it, the least first; empty is any."""

    def at(self, total: float) -> int:
        """Its load where all of them together have this one: its share, or the least listed one above."""
        wanted = max(1, round(total * self.share))
        if not self.listed:
            return wanted
        return self.listed[min(bisect_left(self.listed, wanted), len(self.listed) - 1)]


class Ladder:
    """Loads from the least to the greatest; `parts` divide each among models that are measured together."""

    def __init__(self, space: LoadSpace, *, batch_size: int = 1, parts: Sequence[Part] = ()) -> None:
        self._kind = space.kind
        if parts:
            self._loads = self._together(space, parts)
        else:
            self._loads = [
                Load(kind=space.kind, value=value, batch_size=batch_size) for value in space.values
            ]
        self._values = [load.value for load in self._loads]

    def __len__(self) -> int:
        return len(self._loads)

    def nearest(self, wanted: float) -> int:
        """The step of the least load that is at least `wanted`, or the last one."""
        return min(bisect_left(self._values, wanted), len(self._values) - 1)

    def at(self, step: int) -> Load:
        """The load of a step."""
        return self._loads[step]

    def _together(self, space: LoadSpace, parts: Sequence[Part]) -> list[Load]:
        """Each load once. Where every model has listed ones these are combined freely."""
        if all(part.listed for part in parts):
            combined = list(itertools.product(*(part.listed for part in parts)))
        else:
            combined = [tuple(part.at(value) for part in parts) for value in space.values]
        loads = [
            together(
                [
                    Load(kind=self._kind, value=value, batch_size=part.batch_size)
                    for value, part in zip(values, parts, strict=True)
                ]
            )
            for values in dict.fromkeys(combined)
        ]
        return sorted(loads, key=lambda load: load.value)
