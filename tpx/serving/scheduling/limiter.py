"""The rate limiter: instances of all models share resources, and take turns.

An instance that has work is staged. The staged one with the lowest (executions x priority) is next, and if
its resources are not free everything waits for it, so that nobody starves (Triton: core/src/rate_limiter.cc).
"""

import heapq
from collections.abc import Callable, Mapping, Sequence

from tpx.errors import ConfigError
from tpx.serving.instances.placement import GLOBAL, Needs


class Turn:
    """An instance at the limiter."""

    __slots__ = ("executions", "granted", "needs", "on_granted", "staged")

    def __init__(self, needs: Needs, on_granted: Callable[[], None]) -> None:
        self.needs = needs
        self.on_granted = on_granted
        """Called when a staged instance may compute."""
        self.executions = 0
        self.staged = False
        self.granted = False


class RateLimiter:
    """Grants turns, on the event loop.

    `explicit` are amounts from --rate-limit-resource; of any other resource there is as much as the neediest
    instance takes.
    """

    def __init__(self, explicit: Mapping[tuple[str, int], int]) -> None:
        self._explicit = explicit
        self._turns: list[Turn] = []
        self._total: dict[tuple[str, int], int] = dict(explicit)
        self._used: dict[tuple[str, int], int] = {}
        self._staged: list[tuple[int, int, Turn]] = []
        self._numbers = 0

    def check(self, instances: Sequence[Needs]) -> None:
        """Raise ConfigError for what could never run."""
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

    def register(self, needs: Needs, on_granted: Callable[[], None]) -> Turn:
        """An instance that will take turns."""
        turn = Turn(needs, on_granted)
        self._turns.append(turn)
        self._recount()
        return turn

    def unregister(self, turn: Turn) -> None:
        """An instance has ended."""
        self._turns.remove(turn)
        self._staged = [entry for entry in self._staged if entry[2] is not turn]
        heapq.heapify(self._staged)
        self.release(turn, used=False)
        self._recount()

    def stage(self, turn: Turn) -> bool:
        """An instance has work. True: it may compute now; else `on_granted` is called when it may."""
        if turn.granted:
            return True
        if not turn.staged:
            turn.staged = True
            self._numbers += 1
            key = turn.executions * max(1, turn.needs.priority)
            heapq.heappush(self._staged, (key, self._numbers, turn))
        return self._grant(turn)

    def release(self, turn: Turn, *, used: bool) -> None:
        """A turn is over; it counts if it was used."""
        if not turn.granted:
            return
        turn.granted = False
        turn.executions += used
        for key, count in turn.needs.resources.items():
            self._used[key] -= count
        self._grant(None)

    def _grant(self, asking: Turn | None) -> bool:
        """Grant turns from the front, as far as resources reach; whether `asking` got one."""
        got = False
        while self._staged and self._fits(self._staged[0][2].needs):
            turn = heapq.heappop(self._staged)[2]
            turn.staged = False
            turn.granted = True
            for key, count in turn.needs.resources.items():
                self._used[key] = self._used.get(key, 0) + count
            if turn is asking:
                got = True
            else:
                turn.on_granted()
        return got

    def _fits(self, needs: Needs) -> bool:
        return all(
            self._used.get(key, 0) + count <= self._total.get(key, count)
            for key, count in needs.resources.items()
        )

    def _limit(self, name: str, device: int) -> int | None:
        return self._explicit.get((name, device), self._explicit.get((name, GLOBAL)))

    def _recount(self) -> None:
        total: dict[tuple[str, int], int] = {}
        for turn in self._turns:
            for key, count in turn.needs.resources.items():
                total[key] = max(total.get(key, 0), count)
        for (name, device), _ in list(total.items()):
            limit = self._limit(name, device)
            if limit is not None:
                total[name, device] = limit
        self._total = total
