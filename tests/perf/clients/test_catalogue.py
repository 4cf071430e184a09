"""What whoever mistyped a model's name is told."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.perf.clients.running import ran
from tests.serving.backends.python.zoo import add
from tests.serving.live import Live, serving
from tpx.errors import MeasurementError
from tpx.perf.clients.model import MOST_NAMES, IndexEntry, ModelKey, index_entries, instead


def ready(*names: str) -> list[IndexEntry]:
    return [IndexEntry(name=name, version="1", state="READY") for name in names]


def test_the_nearest_name_is_asked_for_and_all_are_listed() -> None:
    found = instead(ModelKey("mnits"), ready("resnet", "mnist"))
    assert found == " (did you mean 'mnist'?); the server has: mnist, resnet"


def test_a_name_that_is_like_none_gets_the_list_alone() -> None:
    assert instead(ModelKey("zzz"), ready("resnet", "mnist")) == "; the server has: mnist, resnet"


def test_of_many_models_the_nearest_are_listed_and_the_others_counted() -> None:
    found = instead(ModelKey("resnet_50"), ready(*(f"model_{n}" for n in range(99)), "resnet50"))
    assert found.startswith(" (did you mean 'resnet50'?); the server has: resnet50, ")
    assert found.endswith(f" and {100 - MOST_NAMES} more")
    assert found.count(",") == MOST_NAMES - 1


def test_a_version_that_is_missing_is_told_from_a_name_that_is() -> None:
    index = [IndexEntry(name="net", version=v, state="READY") for v in ("1", "3")]
    assert instead(ModelKey("net", "2"), index) == "; the server has it in version 1, 3"


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"name": "net"}, "; the server has it, but it is not loaded"),
        ({"name": "net", "state": "State.READY"}, "; the server has it without versions"),
        ({"name": "net", "state": "LOADING"}, "; the server has it, but it is LOADING"),
        (
            {"name": "net", "state": "UNAVAILABLE", "reason": "no file"},
            "; the server has it, but it is UNAVAILABLE: no file",
        ),
    ],
)
def test_a_model_that_does_not_serve_has_its_state_told(entry: dict[str, str], told: str) -> None:
    assert instead(ModelKey("net"), index_entries([entry])) == told


def test_models_that_do_not_serve_are_not_offered() -> None:
    index = [IndexEntry(name="mnist", state="UNAVAILABLE")]
    assert instead(ModelKey("mnits"), index) == "; the server has no model that is ready"
    assert instead(ModelKey("mnits"), []) == ""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository: Path = tmp_path_factory.mktemp("models")
    add(repository, "double")
    with serving(repository) as server:
        yield server


@pytest.mark.parametrize(("protocol", "service"), [("http", "HTTPService"), ("grpc", "GRPCInferenceService")])
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("-m", "duble"), "'duble' is not found (did you mean 'double'?); the server has: double"),
        (("-m", "double", "-x", "7"), "'double' version 7 is not found; the server has it in version 1"),
    ],
)
def test_a_server_is_asked_what_it_has_instead(
    live: Live, protocol: str, service: str, words: tuple[str, ...], told: str
) -> None:
    with pytest.raises(MeasurementError) as caught:
        ran("-i", protocol, "-u", f"127.0.0.1:{live.ports[service]}", *words)
    assert caught.value.message == f"failed to get model metadata: Request for unknown model: {told}"
