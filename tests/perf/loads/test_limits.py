"""What a machine can open is known before it is tried."""

import math
import resource
from dataclasses import replace
from pathlib import Path

import pytest

from tests.perf.conftest import FakeClient, make_session, measure
from tpx.errors import UsageError
from tpx.perf.clients.grpc import SLOTS_PER_CONNECTION
from tpx.perf.levels import Level
from tpx.perf.loads.base import FILES_BESIDE, check_openable, connection_limits, memory_limit
from tpx.perf.pace import PaceSpec
from tpx.perf.settings import LevelSettings

SETTINGS = LevelSettings()
HUGE = 99_999_999_999_999
FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def refused(level: Level, settings: LevelSettings = SETTINGS, each: float = 1.0) -> str:
    with pytest.raises(UsageError) as caught:
        check_openable(level, settings, each)
    return str(caught.value)


@pytest.mark.parametrize("mode", ["concurrency", "session_concurrency"])
def test_more_requests_in_flight_than_open_files_are_refused_with_the_limits_name(mode: str) -> None:
    said = refused(Level(mode, HUGE))
    assert "99999999999999 requests in flight are more than this machine can open" in said
    assert f"(RLIMIT_NOFILE {FILES}, see ulimit -n)" in said


def test_slots_that_share_connections_are_counted_by_these() -> None:
    check_openable(Level("concurrency", FILES - FILES_BESIDE + 1), SETTINGS, SLOTS_PER_CONNECTION)
    said = refused(Level("concurrency", HUGE), each=float(SLOTS_PER_CONNECTION))
    assert "99999999999999 requests in flight over 6250000000000 connections" in said


def test_slots_without_connections_of_their_own_are_held_against_memory() -> None:
    assert "MiB of memory" in refused(Level("concurrency", HUGE), each=math.inf)
    check_openable(Level("concurrency", memory_limit().most), SETTINGS, math.inf)


def test_loads_that_open_all_slots_at_once_are_held_against_the_limits() -> None:
    sequences = replace(SETTINGS, sequences=HUGE)
    assert "RLIMIT_NOFILE" in refused(Level("request_rate", 1), sequences)
    assert "RLIMIT_NOFILE" in refused(Level("periodic_concurrency", HUGE))
    connections = replace(SETTINGS, pace=PaceSpec(max_connections=HUGE))
    check_openable(Level("request_rate", 1e9), connections, 1.0)  # opens more only as they are needed


def test_ports_are_a_limit_of_all_processes_together(tmp_path: Path) -> None:
    ports = tmp_path / "ip_local_port_range"
    ports.write_text("40000\t40099\n")
    one, both = (list(connection_limits(processes, ports)) for processes in (1, 2))
    assert [limit.most for limit in both] == [one[0].most * 2, 100]
    assert both[1].name == "ephemeral ports 40000 to 40099, see net.ipv4.ip_local_port_range"
    assert len(list(connection_limits(1, tmp_path / "missing"))) == 1


@pytest.mark.slow
def test_a_level_that_cannot_be_opened_is_refused_before_anything_is() -> None:
    client = FakeClient()
    client.slots_per_connection = 1.0
    with pytest.raises(UsageError, match="RLIMIT_NOFILE"):
        measure(make_session(client), Level("concurrency", HUGE), SETTINGS)
    assert client.slots == []
