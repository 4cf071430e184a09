"""The repeat backend: what it asks of a configuration, and how it answers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serving.frontends.streams import REPEAT, repeat
from tests.serving.live import Live, serving
from tpx.serving.backends.models_in_code import RepeatModel


class Sent:
    """Implements ResponseSender: keeps what is sent, and wants no more than so many."""

    def __init__(self, most: int = 1000) -> None:
        self.outputs: list[tuple[int, int]] = []
        self.waits: list[float] = []
        self._most = most

    def send(self, outputs: Any) -> bool:
        self.outputs.append((int(outputs["OUT"][0]), int(outputs["IDX"][0])))
        return len(self.outputs) < self._most

    def send_error(self, error: Exception) -> bool:
        raise error

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        return len(self.outputs) < self._most


def test_each_element_is_a_response_behind_its_delay_and_the_request_is_held_for_its_wait() -> None:
    sent = Sent()
    inputs = {"IN": np.array([5, -1]), "DELAY": np.array([10, 4_000_000_000]), "WAIT": np.array([7])}
    RepeatModel().respond(inputs, sent)
    assert sent.outputs == [(5, 0), (-1, 1)]
    assert sent.waits == [0.01, 4_000_000, 0.007]


def test_it_stops_when_nobody_wants_more() -> None:
    sent = Sent(most=2)
    RepeatModel().respond(repeat([1, 2, 3, 4]), sent)
    assert sent.outputs == [(1, 0), (2, 1)]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository = tmp_path_factory.mktemp("models")
    configs = {
        "good": REPEAT,
        "coupled": 'backend: "repeat" model_transaction_policy { decoupled: false } max_batch_size: 4',
        "batched": f"{REPEAT} max_batch_size: 8",
    }
    for name, config in configs.items():
        _write(repository, name, config)
    with serving(repository, exit_on_error=False) as running:
        yield running


def _write(repository: Path, name: str, config: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)


def test_its_tensors_need_not_be_configured(live: Live) -> None:
    metadata = live.get("/v2/models/good").json
    assert metadata["inputs"] == [
        {"name": "IN", "datatype": "INT32", "shape": [-1]},
        {"name": "DELAY", "datatype": "UINT32", "shape": [-1]},
        {"name": "WAIT", "datatype": "UINT32", "shape": [1]},
    ]
    assert metadata["outputs"] == [
        {"name": "OUT", "datatype": "INT32", "shape": [1]},
        {"name": "IDX", "datatype": "UINT32", "shape": [1]},
    ]
    assert live.get("/v2/models/good/config").json["model_transaction_policy"] == {"decoupled": True}


def test_a_model_with_a_batch_dimension_is_refused_in_words(live: Live) -> None:
    entries = {entry["name"]: entry for entry in live.http("POST", "/v2/repository/index").json}
    assert entries["good"]["state"] == "READY"
    for name in ("coupled", "batched"):
        assert entries[name]["state"] == "UNAVAILABLE"
        assert f"model '{name}': the repeat backend" in entries[name]["reason"]
