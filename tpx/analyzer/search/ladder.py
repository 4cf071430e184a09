"""The loads of a configuration as steps of a ladder, also where each of several models has its own."""

from bisect import bisect_left

from tpx.analyzer.results.measurement import Load
from tpx.analyzer.search.base import LoadSpace


class Ladder:
    """Loads from the least to the greatest; `shares` divides each among models that are measured together."""

    def __init__(self, space: LoadSpace, *, batch_size: int = 1, shares: tuple[float, ...] = ()) -> None:
        self._kind = space.kind
        self._values = sorted(space.values)
        self._batch_size = batch_size
        self._shares = shares

    def __len__(self) -> int:
        return len(self._values)

    def nearest(self, wanted: float) -> int:
        """The step of the least load that is at least `wanted`, or the last one."""
        return min(bisect_left(self._values, wanted), len(self._values) - 1)

    def at(self, step: int) -> Load:
        """The load of a step."""
        value = self._values[step]
        if not self._shares:
            return Load(kind=self._kind, value=value, batch_size=self._batch_size)
        members = tuple(
            Load(kind=self._kind, value=max(1, round(value * share)), batch_size=self._batch_size)
            for share in self._shares
        )
        total = sum(member.value for member in members)
        return Load(kind=self._kind, value=total, batch_size=self._batch_size, members=members)
