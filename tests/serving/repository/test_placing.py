"""Where instances are whose group does not say so."""

from typing import Any

import pytest

from tpx.errors import ConfigError
from tpx.protocol import model_config
from tpx.serving.backends.contract import ModelFiles
from tpx.serving.repository.configuration import fill_defaults


def config(text: str = "") -> Any:
    """A ModelConfig as text."""
    return model_config.parse(f"name: 'net' {text}", "test")


class _Somewhere:
    """A backend as far as filling defaults needs one, on a machine with these GPUs."""

    default_filename = ""

    def __init__(self, *gpus: int, only: bool = False) -> None:
        self.gpus_only = only
        self._gpus = gpus

    def gpus(self) -> tuple[int, ...]:
        return self._gpus

    def open(self, files: ModelFiles, config: Any) -> Any:
        raise AssertionError("defaults are filled before anything is opened")

    def default_instance_count(self, kind: str) -> int:
        return 2 if kind == "KIND_CPU" else 1


@pytest.mark.parametrize(
    ("backend", "group", "kind", "gpus", "count"),
    [
        (_Somewhere(), "", "KIND_CPU", [], 2),
        (_Somewhere(0, 1), "", "KIND_GPU", [0, 1], 1),
        (_Somewhere(0, 1), "kind: KIND_CPU", "KIND_CPU", [], 2),
        (_Somewhere(0, 1), "kind: KIND_GPU gpus: [1]", "KIND_GPU", [1], 1),
        (_Somewhere(0, 1), "kind: KIND_GPU count: 3", "KIND_GPU", [0, 1], 3),
        (_Somewhere(0, 1), "gpus: [1]", "KIND_GPU", [1], 1),
        (_Somewhere(), "kind: KIND_GPU", "KIND_GPU", [], 1),
        (_Somewhere(0, only=True), "", "KIND_GPU", [0], 1),
    ],
)
def test_instances_go_to_the_gpus_there_are_where_nothing_else_is_said(
    backend: _Somewhere, group: str, kind: str, gpus: list[int], count: int
) -> None:
    placed = config(f"instance_group {{ {group} }}")
    fill_defaults(placed, backend)
    [only] = placed.instance_group
    assert model_config.to_json(placed)["instance_group"][0]["kind"] == kind
    assert (list(only.gpus), only.count) == (gpus, count)


def test_a_backend_of_gpus_alone_needs_one() -> None:
    with pytest.raises(ConfigError, match="no GPUs are available"):
        fill_defaults(config(), _Somewhere(only=True))
