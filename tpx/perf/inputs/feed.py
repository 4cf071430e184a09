"""What is sent next: requests made beforehand, in an order that depends on the kind of model."""

import math
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any, Protocol

from tpx.perf.clients.base import Prepared
from tpx.perf.levels import Level

Check = Callable[[int, Any], str]
"""Says what is wrong with a response to the request of a step; nothing where it is as expected."""


class Source(Protocol):
    """The requests of one slot of a load, one after the other."""

    step: int
    """Which of the data's steps the last one carries."""
    sequence: int
    """The number of its sequence; 0 where it belongs to none."""

    def next(self) -> Prepared:
        """The request to send now."""

    def take_back(self) -> None:
        """The last request was not sent: of a sequence it comes again, as none may be missing."""

    def failed(self, sequence: int) -> None:
        """A request of this sequence has failed."""

    def closing(self) -> Prepared | None:
        """What ends the sequence that is open, before the slot rests; None where nothing is."""


class Feed(Protocol):
    """Gives every slot of a load its source."""

    check: Check | None
    """What responses are compared with; None where nobody asks."""

    def begin(self, level: Level) -> None:
        """A load of this level begins: chance is the level's own."""

    def source(self, slot: int) -> Source:
        """That of a slot, which starts anew with each load."""


class RoundRobin:
    """Implements Feed: all slots together walk through the requests, again and again."""

    def __init__(self, requests: Sequence[Prepared], check: Check | None = None) -> None:
        self.check = check
        self._turn = cycle(enumerate(requests)).__next__

    def begin(self, level: Level) -> None:
        """The order is always the same; it goes on from load to load."""

    def source(self, slot: int) -> "Turns":  # noqa: ARG002 (all take from the same)
        return Turns(self._turn)


class Turns:
    """Implements Source."""

    __slots__ = ("_turn", "sequence", "step")

    def __init__(self, turn: Callable[[], tuple[int, Prepared]]) -> None:
        self._turn = turn
        self.step = 0
        self.sequence = 0

    def next(self) -> Prepared:
        self.step, request = self._turn()
        return request

    def take_back(self) -> None:
        """Requests do not need each other."""

    def failed(self, sequence: int) -> None:
        """The next request does not depend on it."""

    def closing(self) -> None:
        """Nothing is ever open."""


def batches(total: int, size: int) -> list[range]:
    """The steps of each request that takes `size` of `total` steps, modulo `total`, until they repeat."""
    return [range(k * size, (k + 1) * size) for k in range(total // math.gcd(total, size))]
