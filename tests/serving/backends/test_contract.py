"""Which instances an instance_group asks for."""

import tracemalloc
from typing import Any

import pytest

from tpx.errors import ConfigError
from tpx.protocol import messages
from tpx.serving.backends.parameters import MAX_INSTANCES, instance_specs


def config(*groups: dict[str, Any]) -> Any:
    """A configuration with these instance groups."""
    out = messages.ModelConfig(name="net")
    for group in groups:
        out.instance_group.add(**group)
    return out


def named(*groups: dict[str, Any]) -> list[tuple[str, str, int]]:
    """Name, kind and device of each instance."""
    return [(spec.name, spec.kind, spec.device_id) for spec in instance_specs(config(*groups))]


def test_instances_are_named_after_their_group_and_numbered() -> None:
    assert named({"name": "net", "kind": "KIND_CPU", "count": 2}, {"name": "b", "kind": 2, "count": 1}) == [
        ("net_0", "KIND_CPU", 0),
        ("net_1", "KIND_CPU", 0),
        ("b_0", "KIND_CPU", 0),
    ]


def test_a_group_has_its_count_on_each_of_its_gpus() -> None:
    assert named({"name": "g", "kind": "KIND_GPU", "count": 2, "gpus": [0, 3]}) == [
        ("g_0", "KIND_GPU", 0),
        ("g_1", "KIND_GPU", 0),
        ("g_0", "KIND_GPU", 3),
        ("g_1", "KIND_GPU", 3),
    ]


def test_passive_instances_are_not_made() -> None:
    passive = {"name": "p", "kind": "KIND_CPU", "count": 1, "passive": True}
    assert named(passive, {"name": "a", "kind": "KIND_CPU", "count": 1}) == [("a_0", "KIND_CPU", 0)]


def test_a_model_of_nothing_but_passive_instances_is_refused_as_it_could_never_answer() -> None:
    with pytest.raises(ConfigError, match="model 'net' has no instance that is not passive"):
        instance_specs(config({"name": "p", "kind": "KIND_CPU", "count": 3, "passive": True}))


@pytest.mark.parametrize(
    "groups",
    [
        [{"name": "a", "count": MAX_INSTANCES + 1}],
        [{"name": "a", "count": MAX_INSTANCES}, {"name": "b", "count": 1}],
        [{"name": "a", "count": 600, "gpus": [0, 1]}],
        [{"name": "a", "count": 2**31 - 1}],
    ],
)
def test_too_many_instances_are_refused_before_they_are_listed(groups: list[dict[str, Any]]) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError, match=rf"'net' asks for \d+ instances, more than {MAX_INSTANCES}"):
            instance_specs(config(*groups))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_the_most_instances_are_allowed() -> None:
    assert len(named({"name": "a", "count": MAX_INSTANCES})) == MAX_INSTANCES
