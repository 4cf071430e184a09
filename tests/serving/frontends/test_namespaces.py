"""Models of the same name, over both protocols: what clients are told, in Triton's words."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.frontends.metrics.pages import ask
from tests.serving.live import Live, serving
from tests.serving.repository.composed import ensemble, model
from tpx.protocol import messages

BODY = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 1]}]}
AMBIGUOUS = (
    "There are 2 identifiers of model 'part' in global map, model namespace must be provided to resolve "
    "ambiguity."
)
UNKNOWN = "Request for unknown model: 'nobody' is not found"


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two, each with a model `part` and an ensemble of it."""
    root = tmp_path_factory.mktemp("repositories")
    for name, factor in (("two", 2), ("three", 3)):
        model(root / name, "part", factor)
        ensemble(root / name, f"top_{name}", "part")
    return [root / "two", root / "three"]


@pytest.fixture(scope="module")
def live(repositories: list[Path]) -> Iterator[Live]:
    with serving(repositories, model_namespacing=True) as live:
        yield live


def test_each_ensemble_answers_with_the_model_of_its_own_repository(
    live: Live, repositories: list[Path]
) -> None:
    for path, factor in zip(repositories, (2, 3), strict=True):
        name = f"top_{path.name}"
        answer = live.infer(name, BODY).json
        assert (answer["model_name"], answer["outputs"][0]["data"]) == (name, [factor, factor])
        [step] = live.get(f"/v2/models/{name}/config").json["ensemble_scheduling"]["step"]
        assert step["model_namespace"] == str(path)


@pytest.mark.parametrize(("name", "why"), [("part", AMBIGUOUS), ("nobody", UNKNOWN)])
def test_a_name_that_stands_for_no_one_model_is_the_clients_fault(live: Live, name: str, why: str) -> None:
    answers = [live.infer(name, BODY), live.get(f"/v2/models/{name}"), live.get(f"/v2/models/{name}/config")]
    assert {(answer.status, answer.error) for answer in answers} == {(400, why)}
    assert live.get(f"/v2/models/{name}/ready").status == 400
    with live.channel() as channel:
        for verb, request in [
            ("ModelInfer", messages.ModelInferRequest(model_name=name)),
            ("ModelMetadata", messages.ModelMetadataRequest(name=name)),
            ("ModelConfig", messages.ModelConfigRequest(name=name)),
        ]:
            assert channel.error(verb, request.SerializeToString()) == ("INVALID_ARGUMENT", why)
        assert not channel.call("ModelReady", name=name).ready


def test_what_is_known_of_a_model_says_which_it_is(live: Live, repositories: list[Path]) -> None:
    answer = live.infer("top_two", BODY, version="7")
    assert answer.status == 404
    assert answer.error == f"Request for unknown model: '{repositories[0]}::top_two' version 7 is not found"


def test_the_index_lists_each_model_of_a_name(live: Live) -> None:
    names = ["part", "top_three", "part", "top_two"]
    told = [{"name": name, "version": "1", "state": "READY"} for name in names]
    assert live.http("POST", "/v2/repository/index").json == told
    with live.channel() as channel:
        assert [entry.name for entry in channel.call("RepositoryIndex").models] == names


def test_statistics_and_metrics_tell_models_of_a_name_apart(live: Live, repositories: list[Path]) -> None:
    live.infer("top_two", BODY)
    assert [each["name"] for each in live.get("/v2/models/stats").json["model_stats"]] == [
        "part",
        "top_three",
        "part",
        "top_two",
    ]
    assert [each["name"] for each in live.get("/v2/models/top_two/stats").json["model_stats"]] == ["top_two"]
    assert live.get("/v2/models/part/stats").error == AMBIGUOUS
    page = ask(live.ports["Metrics Service"]).text
    for path in repositories:
        for name in ("part", f"top_{path.name}"):
            labels = f'{{model="{name}",namespace="{path}",version="1"}}'
            assert f"nv_inference_request_success{labels}" in page


def test_traces_are_set_for_names_that_are_clear(live: Live) -> None:
    assert live.get("/v2/models/top_two/trace/setting").status == 200
    refused = live.get("/v2/models/part/trace/setting")
    assert (refused.status, refused.error) == (400, "Request for unknown model : part")


def test_without_the_option_metrics_have_no_namespace(tmp_path: Path) -> None:
    model(tmp_path, "part", 2)
    with serving(tmp_path) as live:
        assert live.infer("part", BODY).status == 200
        assert "namespace" not in ask(live.ports["Metrics Service"]).text
