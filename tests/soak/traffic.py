"""Many kinds of clients at once, every answer checked, until the time is over or something is wrong."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

PAUSE_S = 0.004
"""After each exchange: the machine is shared, and a soak is about time, not about load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The server that is soaked."""

    http_port: int
    grpc_port: int
    repository: Path


class Wrong(Exception):
    """An answer is not what it must be."""


def expect(true: bool, what: str) -> None:
    """Raises Wrong unless it is so."""
    if not true:
        raise Wrong(what)


Kind = Callable[[Target, np.random.Generator], Iterator[int]]
"""A client: each step is an exchange and yields how many answers of it were checked; raises Wrong."""


class Traffic:
    """Runs clients of several kinds, one thread each."""

    def __init__(self, target: Target, kinds: Mapping[str, Kind]) -> None:
        self._target = target
        self._kinds = kinds
        self._stop = threading.Event()
        self.counts: Counter[str] = Counter()
        """Answers that were checked, by kind."""
        self.steps: Counter[str] = Counter()
        """What was done, whether there was something to check or not."""
        self.failures: list[str] = []

    def run(self, seconds: float, look: Callable[[], None]) -> None:
        """Let all clients work for so long, and look each second; afterwards all of them are closed."""
        self._stop.clear()
        threads = [
            threading.Thread(target=self._work, args=(name, kind, seed), name=f"soak-{name}")
            for seed, (name, kind) in enumerate(self._kinds.items())
        ]
        for thread in threads:
            thread.start()
        ends = time.perf_counter() + seconds
        while (left := ends - time.perf_counter()) > 0 and not self.failures:
            self._stop.wait(min(1, left))
            look()
        self._stop.set()
        for thread in threads:
            thread.join(60)
            if thread.is_alive():
                self.failures.append(f"{thread.name}: an answer did not come within a minute")

    def _work(self, name: str, kind: Kind, seed: int) -> None:
        client = kind(self._target, np.random.default_rng(seed))
        try:
            for checked in client:
                self.counts[name] += checked
                self.steps[name] += 1
                if self._stop.wait(PAUSE_S):
                    break
        except Exception as exc:  # noqa: BLE001 (one client's boundary: whatever it met is the finding)
            self.failures.append(f"{name}: {type(exc).__name__}: {exc}")
            self._stop.set()
        finally:
            close = getattr(client, "close", None)
            if close is not None:
                close()
