"""What else the machine does during a measurement."""

import os
import time
from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any, NamedTuple

import psutil
import pytest

from tpx.analyzer.machine import HostWatch


class Times(NamedTuple):
    user: float = 0.0
    nice: float = 0.0
    system: float = 0.0
    idle: float = 0.0
    iowait: float = 0.0
    irq: float = 0.0
    softirq: float = 0.0
    steal: float = 0.0


def readings(monkeypatch: pytest.MonkeyPatch, before: Times, after: Times) -> None:
    values: Iterator[Any] = chain((before,), repeat(after))
    monkeypatch.setattr(psutil, "cpu_times", lambda: next(values))


def test_time_of_others_is_what_neither_the_server_nor_we_used(monkeypatch: pytest.MonkeyPatch) -> None:
    readings(monkeypatch, Times(), Times(user=60, system=10, idle=20, steal=10))
    use = HostWatch(None).use()
    assert use is not None
    assert use.steal_percent == pytest.approx(10.0)
    assert use.other_percent == pytest.approx(70.0, abs=2.0)  # this process used next to nothing
    assert use.cores == psutil.cpu_count()


def test_our_own_time_is_not_others(monkeypatch: pytest.MonkeyPatch) -> None:
    values = chain((Times(),), repeat(Times(user=1.0, idle=1.0)))
    monkeypatch.setattr(psutil, "cpu_times", lambda: next(values))
    watch = HostWatch(os.getpid())
    until = time.process_time() + 0.3
    while time.process_time() < until:
        pass
    use = watch.use()
    assert use is not None
    assert use.other_percent < 50.0 - 10.0


def test_of_too_short_a_time_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    readings(monkeypatch, Times(user=1.0), Times(user=1.1))
    assert HostWatch(None).use() is None


def test_a_server_that_is_gone_is_no_error() -> None:
    assert HostWatch(2**22 - 3)._measure_own_s() > 0
