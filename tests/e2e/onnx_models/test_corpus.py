"""The onnx package's own model tests, served and compared: every model is loaded without a configuration,
asked through Triton's clients, and unloaded again."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import tritonclient.grpc
import tritonclient.http
import yaml

from tests.e2e.child import Child, serve
from tests.e2e.onnx_models.conversation import computed, difference, served
from tests.e2e.onnx_models.corpus import KINDS, Case, in_files, not_carried, of_operators

pytestmark = pytest.mark.e2e

FILES = [case for kind in KINDS for case in in_files(kind)]
EVERYTHING = "ONNX_EVERY_OPERATOR"
"""In the environment: ask all models of the kind "node", not a sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why ONNX Runtime refuses a model, and what it says."""

    why: str
    says: str


def refusals() -> dict[str, Refusal]:
    """Those that are known, by model."""
    groups = yaml.safe_load((Path(__file__).parent / "refused.yaml").read_text(encoding="utf-8"))
    return {
        model: Refusal(why=group["why"], says=group["says"]) for group in groups for model in group["models"]
    }


REFUSED = refusals()


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A server with explicit control, and a client of it."""

    repository: Path
    client: Any
    protocol: ModuleType

    def outcome(self, case: Case) -> str:
        """What is wrong with the answers to a case, empty if nothing is."""
        examples = list(case.examples())
        answers = served(self.client, self.protocol, case, examples)
        if isinstance(answers, str):
            return answers
        return difference(answers, [example.outputs for example in examples], case)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Child, Path]]:
    """A server that was told of no model, and its repository."""
    repository = tmp_path_factory.mktemp("onnx")
    for case in FILES:
        case.write(repository / case.name / "1")
    words = ("--model-repository", repository, "--model-control-mode=explicit")
    batches = "--backend-config=onnxruntime,default-max-batch-size=64"  # some bring more rows than 4
    with serve(*words, batches, env=locales(tmp_path_factory.mktemp("locales"))) as child:
        yield child.ready(), repository
        assert child.stop() == 0


def locales(directory: Path) -> Mapping[str, str]:
    """Where the system finds en_US.UTF-8, which some of the models ask for: C.UTF-8 by another name."""
    there = next((path for path in Path("/usr/lib/locale").glob("C.[uU][tT][fF]*8") if path.is_dir()), None)
    if there is not None:
        (directory / "en_US.utf8").symlink_to(there)
    return {"LOCPATH": str(directory)} if there is not None else {}


@pytest.fixture(scope="module")
def over_grpc(server: tuple[Child, Path]) -> Iterator[Asked]:
    child, repository = server
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{child.port('GRPCInferenceService')}") as client:
        yield Asked(repository=repository, client=client, protocol=tritonclient.grpc)


@pytest.fixture(scope="module")
def over_http(server: tuple[Child, Path]) -> Iterator[Asked]:
    child, repository = server
    with tritonclient.http.InferenceServerClient(f"127.0.0.1:{child.port('HTTPService')}") as client:
        yield Asked(repository=repository, client=client, protocol=tritonclient.http)


ASKED = [
    pytest.param(protocol, case, id=f"{protocol}-{case.name}")
    for case in FILES
    for protocol in ("over_grpc", "over_http")
    # tensors of the light ones are all alike, and they have a hundred megabytes of weights
    if case.name not in REFUSED and (case.kind != "light" or protocol == "over_grpc")
]


@pytest.mark.parametrize(("protocol", "case"), ASKED)
def test_what_onnx_expects_is_what_is_served(
    protocol: str, case: Case, request: pytest.FixtureRequest
) -> None:
    asked: Asked = request.getfixturevalue(protocol)
    assert asked.outcome(case) == ""


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_listed_as_refused_is_refused_for_that_reason(over_grpc: Asked, name: str) -> None:
    [case] = [case for case in FILES if case.name == name]
    outcome = over_grpc.outcome(case)
    assert outcome.startswith("load: "), f"{name} works now: take it off refused.yaml"
    assert REFUSED[name].says in outcome


def test_every_model_in_a_file_has_answers_to_be_compared_with() -> None:
    counts = {case.name: sum(len(example.outputs) for example in case.examples()) for case in FILES}
    assert [name for name, count in counts.items() if not count] == []
    assert len(counts) >= 149


@pytest.mark.timeout(3000 if EVERYTHING in os.environ else 300)
def test_every_operator_answers_as_onnx_expects_or_as_onnx_runtime_does_by_itself(over_grpc: Asked) -> None:
    everything = EVERYTHING in os.environ
    every = of_operators(pools=everything)
    assert len(every) > 1000
    chosen = every if everything else every[::25]
    faults = {}
    for case in chosen:
        case.write(over_grpc.repository / case.name / "1")
        fault = _refused_rightly(over_grpc, case) if not_carried(case) else _answered_wrongly(over_grpc, case)
        if fault:
            faults[case.name] = fault
    assert faults == {}


def _refused_rightly(asked: Asked, case: Case) -> str:
    """What is wrong with how a model is refused whose types the protocol does not have."""
    answers = served(asked.client, asked.protocol, case, [])
    right = isinstance(answers, str) and answers.startswith("load: ")
    if right and (
        "which the v2 protocol does not support" in answers or "onnx runtime cannot load" in answers
    ):
        return ""
    return f"{not_carried(case)} cannot be carried -> {answers}"


def _answered_wrongly(asked: Asked, case: Case) -> str:
    """Where the served model is neither what is expected nor what ONNX Runtime is by itself."""
    examples = list(case.examples())
    answers = served(asked.client, asked.protocol, case, examples)
    if not isinstance(answers, str) and not difference(answers, [e.outputs for e in examples], case):
        return ""
    alone = computed(case, examples)
    if isinstance(alone, str):
        same = isinstance(answers, str) and answers.partition(":")[0] == alone.partition(":")[0]
        return "" if same else f"by itself {alone} -> {answers}"
    return answers if isinstance(answers, str) else difference(answers, alone, case)
