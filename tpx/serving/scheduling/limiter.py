"""The rate limiter: instances of all models share resources, and take turns.

An instance with work is staged. Turns are granted in ascending order of (executions x priority)
(Triton: core/src/rate_limiter.cc). If the resources of an instance are not free, later instances that
need one of them wait as well, so that none starves; all others may proceed.
"""

import bisect
import re
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Protocol

from tpx.errors import ConfigError, UsageError
from tpx.serving.backends.contract import GLOBAL, Needs

Resource = tuple[str, int]
"""Name and device."""


class Admission(Protocol):
    """Decides when the instances of an instance queue may compute."""

    limited: bool
    """True if `stage` may refuse; nothing is taken from the queue before admission."""

    def enter(self) -> None:
        """Count the instance."""

    def leave(self) -> None:
        """Remove the instance, which has ended."""

    def stage(self) -> bool:
        """Request admission, because there is work. Return whether it is granted now."""

    def withdraw(self) -> None:
        """Withdraw the admission or the request for it, because there is no work."""

    def done(self, waiting: Sized) -> None:
        """End the admission after a batch; there is more work if anything is `waiting`."""


class Free:
    """Admission of instances that compute whenever they have work."""

    limited = False

    def enter(self) -> None: ...
    def leave(self) -> None: ...
    def stage(self) -> bool:
        return True

    def withdraw(self) -> None: ...
    def done(self, waiting: Sized) -> None: ...


FREE = Free()


class Limiter(Protocol):
    """Admits the instances of all models."""

    def check(self, instances: Sequence[Needs]) -> None:
        """Raise ConfigError for an instance that could never run. May be called from any thread."""

    def admission(self, needs: Needs, on_granted: Callable[[], None]) -> Admission:
        """Return the admission of an instance; `on_granted` is called when a refused one may compute."""


class NoLimiter:
    """Admits every instance at once: --rate-limit is off."""

    def check(self, instances: Sequence[Needs]) -> None:
        """Do nothing: every instance can run."""

    def admission(self, needs: Needs, on_granted: Callable[[], None]) -> Admission:  # noqa: ARG002
        return FREE


class LimitedAdmission:
    """Admission of an instance that takes turns with others."""

    limited = True
    __slots__ = ("_limiter", "granted", "idle", "needs", "on_granted", "rank", "share")

    def __init__(self, limiter: "RateLimiter", needs: Needs, on_granted: Callable[[], None]) -> None:
        self._limiter = limiter
        self.needs = needs
        self.on_granted = on_granted
        """Called when a staged instance may compute."""
        self.share = 0
        """Executions x priority."""
        self.rank: tuple[int, int, LimitedAdmission] | None = None
        """Position among staged instances."""
        self.granted = False
        self.idle = True
        """True after it had no work; it then gets no credit for what it did not use."""

    def enter(self) -> None:
        self._limiter.admissions.append(self)
        self._limiter.recount()

    def leave(self) -> None:
        self._limiter.admissions.remove(self)
        self._limiter.recount()
        self.withdraw()

    def stage(self) -> bool:
        if not self.granted and self.rank is None:
            self._limiter.line_up(self)
            self._limiter.grant(self)
        return self.granted

    def withdraw(self) -> None:
        self.idle = True
        self._limiter.release(self)
        self._limiter.grant(None)

    def done(self, waiting: Sized) -> None:
        more = len(waiting) > 0
        self.share += self.needs.priority
        self.idle = not more
        self._limiter.release(self)
        if more:
            self._limiter.line_up(self)
        self._limiter.grant(None)


class RateLimiter:
    """Grants admissions, on the event loop.

    `explicit` are the amounts from --rate-limit-resource; any other resource has the maximum amount
    that an instance requires.
    """

    def __init__(self, explicit: Mapping[Resource, int]) -> None:
        self._explicit = explicit
        self.admissions: list[LimitedAdmission] = []
        """Instances that take turns."""
        self._total: dict[Resource, int] = {}
        self._used: dict[Resource, int] = {}
        self._row: list[tuple[int, int, LimitedAdmission]] = []
        self._numbers = 0

    def check(self, instances: Sequence[Needs]) -> None:
        everywhere: dict[str, bool] = {}
        for needs in instances:
            for (name, device), count in needs.resources.items():
                limit = self._find_limit(name, device)
                if limit is not None and count > limit:
                    raise ConfigError(
                        f'Resource count for "{name}" is limited to {limit} which will prevent scheduling of '
                        f"one or more model instances, the minimum required count is {count}",
                        field="instance_group",
                    )
                if everywhere.setdefault(name, device == GLOBAL) != (device == GLOBAL):
                    raise ConfigError(
                        f'Resource "{name}" is present as both global and device-specific resource in the '
                        "model configuration.",
                        field="instance_group",
                    )

    def admission(self, needs: Needs, on_granted: Callable[[], None]) -> LimitedAdmission:
        return LimitedAdmission(self, needs, on_granted)

    def line_up(self, admission: LimitedAdmission) -> None:
        """Stage an instance that has work."""
        if admission.idle:
            admission.idle = False
            # turns that it did not need are no credit: otherwise it would compute alone until it caught up
            shares = [other.share for other in self.admissions if _is_competing(other, admission)]
            admission.share = max(admission.share, min(shares, default=0))
        self._numbers += 1  # equal shares take turns in the order in which they were staged
        admission.rank = (admission.share, self._numbers, admission)
        bisect.insort(self._row, admission.rank)

    def release(self, admission: LimitedAdmission) -> None:
        """Unstage an instance, or release the resources granted to it."""
        if admission.rank is not None:
            self._row.remove(admission.rank)
            admission.rank = None
        if admission.granted:
            admission.granted = False
            for resource, count in admission.needs.resources.items():
                self._used[resource] -= count

    def grant(self, asking: LimitedAdmission | None) -> None:
        """Grant admissions as far as resources permit; `asking` is not called back."""
        held_back: set[Resource] = set()
        for rank in tuple(self._row):
            admission = rank[2]
            needs = admission.needs.resources
            if not held_back.isdisjoint(needs) or not self._can_grant(needs):
                held_back.update(needs)
                continue
            for resource, count in needs.items():
                self._used[resource] = self._used.get(resource, 0) + count
            self._row.remove(rank)
            admission.rank = None
            admission.granted = True
            if admission is not asking:
                admission.on_granted()

    def _can_grant(self, needs: Mapping[Resource, int]) -> bool:
        return all(
            self._used.get(resource, 0) + count <= self._total.get(resource, count)
            for resource, count in needs.items()
        )

    def _find_limit(self, name: str, device: int) -> int | None:
        """Return the limit; for a resource shared by all devices, the option's device is ignored."""
        if device == GLOBAL:
            return max((count for (known, _), count in self._explicit.items() if known == name), default=None)
        return self._explicit.get((name, device), self._explicit.get((name, GLOBAL)))

    def recount(self) -> None:
        """Recompute the available resources for these instances."""
        total: dict[Resource, int] = {}
        for admission in self.admissions:
            for resource, count in admission.needs.resources.items():
                limit = self._find_limit(*resource)
                total[resource] = max(total.get(resource, 0), count) if limit is None else limit
        self._total = total


def _is_competing(other: LimitedAdmission, admission: LimitedAdmission) -> bool:
    """Return whether another instance wants the same resource now."""
    if other is admission or not (other.granted or other.rank is not None):
        return False
    return not other.needs.resources.keys().isdisjoint(admission.needs.resources)


def parse_resources(flags: Sequence[str]) -> dict[Resource, int]:
    """Return the amounts of --rate-limit-resource, by name and device. Raises UsageError."""
    amounts: dict[Resource, int] = {}
    for flag in flags:
        match = re.fullmatch(r"([^:]+):(\d+)(?::(\d+))?", flag, re.ASCII)
        if match is None:
            raise UsageError(f"--rate-limit-resource must be <name>:<count>[:<device>], got '{flag}'")
        name, count, device = match.groups()
        resource = (name, GLOBAL if device is None else int(device))
        if amounts.setdefault(resource, int(count)) != int(count):
            raise UsageError(f"--rate-limit-resource gives '{name}' twice, with different amounts")
    return amounts
