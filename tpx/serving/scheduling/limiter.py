"""The rate limiter: instances of all models share resources, and take turns.

An instance that has work is staged. Turns go by (executions x priority), lowest first (Triton:
core/src/rate_limiter.cc). One whose resources are not free holds back those after it that want one of the
same, so that nobody starves; the others go on.
"""

import bisect
import re
from collections.abc import Callable, Mapping, Sequence

from tpx.errors import ConfigError, UsageError
from tpx.serving.backends.contract import GLOBAL, Needs

Resource = tuple[str, int]
"""A name and a device."""


class Turn:
    """An instance at the limiter."""

    __slots__ = ("granted", "idle", "needs", "on_granted", "place", "share")

    def __init__(self, needs: Needs, on_granted: Callable[[], None]) -> None:
        self.needs = needs
        self.on_granted = on_granted
        """Called when a staged instance may compute."""
        self.share = 0
        """Executions x priority."""
        self.place: tuple[int, int, Turn] | None = None
        """In the row of those that are staged."""
        self.granted = False
        self.idle = True
        """It has had no work: it is not owed what it did not want."""


class RateLimiter:
    """Grants turns, on the event loop.

    `explicit` are amounts from --rate-limit-resource; of any other resource there is as much as the neediest
    instance takes.
    """

    def __init__(self, explicit: Mapping[Resource, int]) -> None:
        self._explicit = explicit
        self._turns: list[Turn] = []
        self._total: dict[Resource, int] = {}
        self._used: dict[Resource, int] = {}
        self._row: list[tuple[int, int, Turn]] = []
        self._numbers = 0

    @property
    def turns(self) -> int:
        """Instances that take turns."""
        return len(self._turns)

    def check(self, instances: Sequence[Needs]) -> None:
        """Raise ConfigError for what could never run. May be called from any thread."""
        everywhere: dict[str, bool] = {}
        for needs in instances:
            for (name, device), count in needs.resources.items():
                limit = self._limit(name, device)
                if limit is not None and count > limit:
                    raise ConfigError(
                        f'Resource count for "{name}" is limited to {limit} which will prevent scheduling of '
                        f"one or more model instances, the minimum required count is {count}"
                    )
                if everywhere.setdefault(name, device == GLOBAL) != (device == GLOBAL):
                    raise ConfigError(
                        f'Resource "{name}" is present as both global and device-specific resource in the '
                        "model configuration."
                    )

    def enter(self, turn: Turn) -> None:
        """An instance that will take turns."""
        self._turns.append(turn)
        self._recount()

    def leave(self, turn: Turn) -> None:
        """An instance has ended."""
        self._turns.remove(turn)
        self._recount()
        self.withdraw(turn)

    def stage(self, turn: Turn) -> bool:
        """An instance has work. True: it may compute now; else `on_granted` is called when it may."""
        if not turn.granted and turn.place is None:
            self._line_up(turn)
            self._grant(turn)
        return turn.granted

    def withdraw(self, turn: Turn) -> None:
        """An instance has no work after all."""
        turn.idle = True
        if turn.place is not None:
            self._row.remove(turn.place)
            turn.place = None
        self._release(turn)
        self._grant(None)

    def done(self, turn: Turn, *, more: bool) -> None:
        """An instance has computed in its turn; `more` tells that it may have further work."""
        turn.share += turn.needs.priority
        turn.idle = not more
        self._release(turn)
        if more:
            self._line_up(turn)
        self._grant(None)

    def _line_up(self, turn: Turn) -> None:
        if turn.idle:
            turn.idle = False
            shares = [other.share for other in self._turns if _compete(other, turn)]
            turn.share = max(turn.share, min(shares, default=0))
        self._numbers += 1
        turn.place = (turn.share, self._numbers, turn)
        bisect.insort(self._row, turn.place)

    def _release(self, turn: Turn) -> None:
        if turn.granted:
            turn.granted = False
            for resource, count in turn.needs.resources.items():
                self._used[resource] -= count

    def _grant(self, asking: Turn | None) -> None:
        """Grant turns, as far as resources reach; the one that asks is not told."""
        held_back: set[Resource] = set()
        for place in tuple(self._row):
            turn = place[2]
            needs = turn.needs.resources
            if not held_back.isdisjoint(needs) or not self._fits(needs):
                held_back.update(needs)
                continue
            for resource, count in needs.items():
                self._used[resource] = self._used.get(resource, 0) + count
            self._row.remove(place)
            turn.place = None
            turn.granted = True
            if turn is not asking:
                turn.on_granted()

    def _fits(self, needs: Mapping[Resource, int]) -> bool:
        return all(
            self._used.get(resource, 0) + count <= self._total.get(resource, count)
            for resource, count in needs.items()
        )

    def _limit(self, name: str, device: int) -> int | None:
        """Of a resource that all devices share, the device in the option means nothing."""
        if device == GLOBAL:
            return max((count for (known, _), count in self._explicit.items() if known == name), default=None)
        return self._explicit.get((name, device), self._explicit.get((name, GLOBAL)))

    def _recount(self) -> None:
        total: dict[Resource, int] = {}
        for turn in self._turns:
            for resource, count in turn.needs.resources.items():
                limit = self._limit(*resource)
                total[resource] = max(total.get(resource, 0), count) if limit is None else limit
        self._total = total


def _compete(other: Turn, turn: Turn) -> bool:
    """Whether another one wants what this one wants, now."""
    if other is turn or not (other.granted or other.place is not None):
        return False
    return not other.needs.resources.keys().isdisjoint(turn.needs.resources)


def parse_resources(flags: Sequence[str]) -> dict[Resource, int]:
    """The amounts of --rate-limit-resource, by name and device. Raises UsageError."""
    amounts: dict[Resource, int] = {}
    for flag in flags:
        match = re.fullmatch(r"([^:]+):(\d+)(?::(\d+))?", flag, re.ASCII)
        if match is None:
            raise UsageError(f"--rate-limit-resource must be <name>:<count>[:<device>], got '{flag}'")
        name, count, device = match.groups()
        resource = (name, GLOBAL if device is None else int(device))
        if amounts.setdefault(resource, int(count)) != int(count):
            raise UsageError(f"--rate-limit-resource gives '{name}' twice, and not the same amount")
    return amounts
