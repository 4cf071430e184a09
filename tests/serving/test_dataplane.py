"""Verbs that monitoring calls often: their work does not grow with the number of models."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serving.counting import steps_of
from tests.serving.repository.test_table import NET, PLAN, STAMPS, Scene
from tpx.serving.dataplane import DataPlane, Watching
from tpx.serving.model_id import ModelId
from tpx.serving.repository.records import Plan
from tpx.serving.shared_memory.regions import SharedMemory


@pytest.fixture
def table() -> Iterator[Scene]:
    """An empty repository."""
    loop = asyncio.new_event_loop()
    yield Scene(loop)
    loop.close()


def test_a_check_of_readiness_costs_the_same_with_many_models(table: Scene) -> None:
    repository = table.repository
    table.load(1)
    assert repository.all_ready()
    of_one, of_listing = steps_of(repository.all_ready), steps_of(repository.served)
    table.load(*range(2, 201), keep=(1,))
    assert repository.all_ready()
    assert steps_of(repository.all_ready) == of_one
    assert len(repository.served()) == 200
    assert steps_of(repository.served) == of_listing
    repository.fail(NET, {})
    assert repository.all_ready()
    plan = Plan(load=(201,), keep=(1,), unload=())
    repository.begin(NET, plan)
    assert not repository.all_ready()
    repository.fail(NET, {201: "no"})
    assert not repository.all_ready()
    assert steps_of(repository.all_ready) <= of_one
    repository.unload(NET)
    assert repository.all_ready()


def plane_of(table: Scene) -> DataPlane:
    unused: Any = None
    return DataPlane(
        table.repository,
        unused,
        SharedMemory(unused),
        Watching(unused, unused),
        "",
        strict_readiness=True,
        max_string_elements=1,
    )


def test_the_load_of_a_server_has_the_requests_of_all_models_but_ensembles(table: Scene) -> None:
    table.load(1, 2, 3)
    first, second, ensemble = table.repository.served()
    first.in_flight, second.in_flight, ensemble.in_flight = 3, 1, 4
    ensemble.composed_of = frozenset({NET})
    assert plane_of(table).server_load() == (4, 0)


def test_metadata_and_statistics_of_one_model_cost_the_same_with_many_others(table: Scene) -> None:
    plane = plane_of(table)

    def ask() -> None:
        assert plane.model_metadata("net", "").versions == ["1", "2"]
        assert [each["version"] for each in plane.statistics("net", "")] == ["1", "2"]

    table.load(1, 2)
    ask()
    alone = steps_of(ask)
    for number in range(50):
        table.repository.begin(ModelId(f"other{number}"), PLAN)
        table.repository.succeed(
            ModelId(f"other{number}"), PLAN, {1: table.made(1, f"other{number}")}, STAMPS
        )
    assert len(table.repository.served()) == 52
    assert steps_of(ask) == alone
