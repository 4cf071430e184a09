"""TensorFlow models as a client meets them.

TensorFlow itself is only in children of this process: one exports the models, one serves them.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.e2e.child import Child, environment, serve

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(180),  # TensorFlow is imported twice, by children
    pytest.mark.skipif(find_spec("tensorflow") is None, reason="needs tensorflow"),
]

Arrays = dict[str, npt.NDArray[Any]]

FLOATS = np.array([[1, 2], [-3, 0.5]], dtype=np.float32)
PRODUCT = FLOATS @ np.array([[1, 2, 3], [4, 5, 6]], dtype=np.float32)
GRAPH_IO = (
    "platform: 'tensorflow_graphdef' max_batch_size: 4 "
    "input [{ name: 'INPUT0' data_type: TYPE_FP32 dims: [ 2 ] }] "
    "output [{ name: 'OUTPUT0' data_type: TYPE_FP32 dims: [ 2 ] }] "
)


def parameters(**settings: str) -> str:
    """`parameters` of a config.pbtxt."""
    return "".join(
        f"parameters {{ key: '{key}' value {{ string_value: '{text}' }} }} " for key, text in settings.items()
    )


def signature(name: str) -> str:
    """The parameter that chooses a signature."""
    return parameters(TF_SIGNATURE_DEF=name)


SERVED = {
    "functions": "",
    "words": signature("words"),
    "halves": signature("halves"),
    "scalars": signature("scalars"),
    "any_rank": signature("any_rank")
    + "input [{ name: 'x' data_type: TYPE_FP32 dims: [ -1, 3 ] }] output [{ name: 'y' data_type: TYPE_FP32 "
    "dims: [ -1, 3 ] }]",
    "picky": signature("picky") + parameters(TF_NUM_INTER_THREADS="2", TF_USE_PER_SESSION_THREADS="On"),
    "together": signature("count")
    + parameters(MAX_SESSION_SHARE_COUNT="2")
    + "instance_group [{ count: 2 }]",
    "apart": signature("count") + "instance_group [{ count: 2 }]",
    "one_output": "output [{ name: 'x_plus_1' }] optimization { graph { level: -1 } }",
}
REFUSED = {
    "no_rank": (signature("any_rank"), "the model does not declare how many dimensions 'x' has"),
    "no_signature": (
        signature("nothing"),
        "has no signature 'nothing' (it has: any_rank, count, halves, multiply, picky, scalars, ",
    ),
    "no_tag": (parameters(TF_GRAPH_TAG="gpu"), "MetaGraphDef associated with tags 'gpu' could not be found"),
    "no_batches": (
        signature("scalars") + "max_batch_size: 2",
        "configuration specified max-batch 2 but model signature does not support batching",
    ),
    "wrong_input": (
        "max_batch_size: 4 input [{ name: 'z' data_type: TYPE_FP32 dims: [ 2 ] }]",
        "unexpected inference input 'z', allowed inputs are: x",
    ),
    "wrong_type": (
        "max_batch_size: 4 input [{ name: 'x' data_type: TYPE_INT32 dims: [ 2 ] }]",
        "configuration expects datatype TYPE_INT32 for input 'x', model provides TYPE_FP32",
    ),
    "init_ops": (parameters(TF_INIT_OPS_FILE="init.json"), "is for the platform tensorflow_graphdef"),
    "no_gpu": ("instance_group [{ kind: KIND_GPU gpus: [ 0 ] count: 1 }]", "TensorFlow sees 0 GPUs"),
}
GRAPHS_REFUSED = {
    "graph_alone": ("", "must specify at least one output"),
    "graph_output": (
        GRAPH_IO.replace("'OUTPUT0'", "'NOTHING'"),
        "unexpected inference output 'NOTHING', allowed outputs are: OUTPUT0",
    ),
    "graph_dims": (GRAPH_IO.replace("dims: [ 2 ]", "dims: [ 3 ]"), "the model expects 2 dimensions"),
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exported models, each SavedModel under as many names as there are configurations for it."""
    repository = tmp_path_factory.mktemp("tensorflow") / "models"
    repository.mkdir()
    script = Path(__file__).with_name("export_models.py")
    subprocess.run(
        [sys.executable, script, repository], env=environment(), check=True, capture_output=True, timeout=120
    )
    functions, frozen = (
        repository.parent / "functions.savedmodel",
        repository / "frozen" / "1" / "model.graphdef",
    )
    named = {**SERVED, **{name: text for name, (text, _) in REFUSED.items()}}
    for name, text in named.items():
        place(repository / name, "model.savedmodel", functions, text)
    for name, (text, _) in GRAPHS_REFUSED.items():
        place(repository / name, "model.graphdef", frozen, text)
    (repository / "frozen" / "config.pbtxt").write_text(GRAPH_IO, encoding="utf-8")
    (repository / "graph" / "config.pbtxt").write_text(
        GRAPH_IO + parameters(TF_INIT_OPS_FILE="init.json"), encoding="utf-8"
    )
    (repository / "graph" / "init.json").write_text(json.dumps({"init_ops": ["INIT"]}), encoding="utf-8")
    (repository / "empty" / "1" / "model.savedmodel").mkdir(parents=True)
    return repository


def place(directory: Path, filename: str, target: Path, text: str) -> None:
    """A model whose file is a link."""
    (directory / "1").mkdir(parents=True)
    (directory / "1" / filename).symlink_to(target)
    (directory / "config.pbtxt").write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Child]:
    with serve(
        "--model-repository", repository, "--exit-on-error=false", "--strict-readiness=false"
    ) as child:
        child.wait_for(r"Started HTTPService", timeout_s=90)
        yield child
        assert child.stop() == 0


def asked(server: Child, model: str, arrays: Mapping[str, npt.NDArray[Any]], module: Any) -> Any:
    """The answer to these tensors, by a client of its own."""
    service = "HTTPService" if module is tritonclient.http else "GRPCInferenceService"
    inputs = [
        module.InferInput(
            name, array.shape, tritonclient.utils.np_to_triton_dtype(array.dtype)
        ).set_data_from_numpy(array)
        for name, array in arrays.items()
    ]
    with module.InferenceServerClient(f"127.0.0.1:{server.port(service)}") as client:
        return client.infer(model, inputs)


def infer(server: Child, model: str, **arrays: npt.NDArray[Any]) -> Arrays:
    """All outputs."""
    answer = asked(server, model, arrays, tritonclient.grpc)
    return {each.name: answer.as_numpy(each.name) for each in answer.get_response().outputs}


def told(server: Child, path: str) -> Any:
    """What a GET of the server is answered with."""
    with urlopen(f"http://127.0.0.1:{server.port('HTTPService')}{path}", timeout=20) as response:
        return json.load(response)


@pytest.mark.parametrize("module", [tritonclient.http, tritonclient.grpc])
def test_a_keras_model_answers_as_keras_does(server: Child, repository: Path, module: Any) -> None:
    data = np.load(repository.parent / "digits.npz")
    images, labels, scores = data["images"], data["labels"], data["scores"]
    rows = [
        asked(server, "digits", {"pixels": images[start : start + 4]}, module).as_numpy("output_0")
        for start in range(0, 300, 4)
    ]
    answered = np.concatenate(rows)
    assert np.allclose(answered, scores, atol=1e-5)
    accuracy, own = ((each.argmax(axis=1) == labels).mean() for each in (answered, scores))
    assert accuracy == own > 0.85


def test_names_types_and_the_batch_dimension_come_from_the_signature(server: Child) -> None:
    config = told(server, "/v2/models/digits/config")
    assert (config["platform"], config["backend"]) == ("tensorflow_savedmodel", "tensorflow")
    assert (config["max_batch_size"], config["dynamic_batching"]["preferred_batch_size"]) == (4, [4])
    [pixels], [output] = config["input"], config["output"]
    assert (pixels["name"], pixels["data_type"], pixels["dims"]) == ("pixels", "TYPE_FP32", [64])
    assert (output["name"], output["data_type"], output["dims"]) == ("output_0", "TYPE_FP32", [10])


def test_every_output_of_the_dictionary_has_its_name(server: Child) -> None:
    out = infer(server, "functions", x=FLOATS)
    assert {name: array.tolist() for name, array in out.items()} == {
        "product": PRODUCT.tolist(),
        "again": FLOATS.tolist(),
        "x_plus_1": (FLOATS + 1).tolist(),
    }


def test_outputs_that_are_not_configured_are_not_computed(server: Child) -> None:
    out = infer(server, "one_output", x=FLOATS)
    assert list(out) == ["x_plus_1"]
    assert [each["dims"] for each in told(server, "/v2/models/one_output/config")["output"]] == [[2]]


def test_the_only_signature_needs_no_name(server: Child) -> None:
    assert infer(server, "single", x=FLOATS)["product"].tolist() == PRODUCT.tolist()


def test_strings_go_in_and_come_out_byte_by_byte(server: Child) -> None:
    words = np.array([["cat", "dög".encode(), b"\0\xff\0"], ["", "cat", "x" * 300]], dtype=object)
    out = infer(server, "words", words=words)
    assert out["ids"].tolist() == [[1, 2, -1], [-1, 1, -1]]
    assert out["joined"].reshape(-1).tolist() == [
        "cat\0dög\0".encode() + b"\0\xff\0",
        b"\0cat\0" + b"x" * 300,
    ]


def test_bfloat16_and_half_precision_are_computed(server: Child) -> None:
    message = tritonclient.grpc.InferInput("x", [1, 2], "BF16")
    message.set_data_from_numpy(np.array([[1.5, -2]], dtype=ml_dtypes.bfloat16))
    with tritonclient.grpc.InferenceServerClient(
        f"127.0.0.1:{server.port('GRPCInferenceService')}"
    ) as client:
        answer = client.infer("halves", [message])
    assert answer.as_numpy("y").tolist() == [[3, -4]]
    assert answer.as_numpy("half").dtype == np.float16


def test_a_scalar_is_one_element_for_the_client(server: Child) -> None:
    out = infer(server, "scalars", s=np.array([2], np.float32), w=np.array([b"hey\0"], dtype=object))
    assert (out["t"].tolist(), out["v"].tolist()) == ([3], [b"hey\0!"])


def test_a_tensor_of_any_rank_takes_the_configured_dims(server: Child) -> None:
    assert infer(server, "any_rank", x=np.ones((2, 3), np.float32))["y"].tolist() == [[2] * 3] * 2


def counts(server: Child, model: str, requests: int) -> Sequence[int]:
    """How often each instance's session says that it was called, of requests at the same time."""

    def count(_: int) -> int:
        return int(infer(server, model, x=FLOATS[:1])["calls"].item())

    with ThreadPoolExecutor(8) as pool:
        return sorted(pool.map(count, range(requests)))


def test_instances_share_a_session_as_far_as_they_may(server: Child) -> None:
    assert counts(server, "together", 24)[-1] == 24 - _batched(server, "together")


def test_instances_have_sessions_of_their_own_otherwise(server: Child) -> None:
    for _ in range(20):
        last = counts(server, "apart", 24)[-1]
        if last < _executions(server, "apart"):
            return
    pytest.fail("only one of two instances was ever called")


def _executions(server: Child, model: str) -> int:
    return int(told(server, f"/v2/models/{model}/stats")["model_stats"][0]["execution_count"])


def _batched(server: Child, model: str) -> int:
    """Requests that were computed with another one's execution."""
    [stats] = told(server, f"/v2/models/{model}/stats")["model_stats"]
    return int(stats["inference_count"]) - int(stats["execution_count"])


def test_a_graph_is_served_by_the_names_of_its_operations(server: Child) -> None:
    assert infer(server, "frozen", INPUT0=FLOATS)["OUTPUT0"].tolist() == (FLOATS + 3).tolist()
    assert told(server, "/v2/models/frozen")["platform"] == "tensorflow_graphdef"


def test_the_operations_that_initialise_a_graph_are_run(server: Child) -> None:
    assert infer(server, "graph", INPUT0=FLOATS)["OUTPUT0"].tolist() == (FLOATS + 3).tolist()


def test_what_cannot_be_served_says_why(server: Child) -> None:
    with tritonclient.http.InferenceServerClient(f"127.0.0.1:{server.port('HTTPService')}") as client:
        index = {each["name"]: each for each in client.get_model_repository_index()}
    expected = {name: reason for name, (_, reason) in {**REFUSED, **GRAPHS_REFUSED}.items()}
    expected["empty"] = "SavedModel file does not exist at: "
    for name, reason in expected.items():
        assert (index[name]["state"], reason in index[name]["reason"]) == ("UNAVAILABLE", True), index[name]
    others = {name for name, each in index.items() if each["state"] == "READY"}
    assert others == {*SERVED, "digits", "single", "frozen", "graph"}


def test_an_error_of_the_model_is_the_requests_alone(server: Child) -> None:
    with pytest.raises(InferenceServerException, match=r"tensorflow error: Matrix size-incompatible"):
        infer(server, "picky", x=np.ones((1, 5), np.float32))
    assert infer(server, "picky", x=FLOATS)["y"].tolist() == PRODUCT.tolist()
