"""Ensembles with the client library that Triton's users have: pictures, and steps with several responses."""

from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.e2e.child import Child, serve
from tests.serving.frontends.streams import repeat
from tpx import examples
from tpx.examples.image import COLOURS, IMAGE, SIDE

pytestmark = pytest.mark.e2e

EACH = """
platform: "ensemble"
input [
  { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] },
  { name: "DELAY" data_type: TYPE_UINT32 dims: [ -1 ] },
  { name: "WAIT" data_type: TYPE_UINT32 dims: [ 1 ] }
]
output [ { name: "VALUE" data_type: TYPE_INT32 dims: [ 1 ] } ]
ensemble_scheduling {
  max_inflight_requests: 3
  step [
    {
      model_name: "repeat"
      model_version: -1
      input_map [ { key: "IN" value: "IN" }, { key: "DELAY" value: "DELAY" }, { key: "WAIT" value: "WAIT" } ]
      output_map { key: "OUT" value: "one" }
    },
    {
      model_name: "same"
      model_version: -1
      input_map { key: "x" value: "one" }
      output_map { key: "y" value: "VALUE" }
    }
  ]
}
"""
SAME = (
    "backend: 'identity' input { name: 'x' data_type: TYPE_INT32 dims: [1] } "
    "output { name: 'y' data_type: TYPE_INT32 dims: [1] }"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    repository = tmp_path_factory.mktemp("ensembles")
    examples.write(repository, [example.name for example in IMAGE])
    decoupled = 'backend: "repeat" model_transaction_policy { decoupled: true }'
    for name, config in (("each", EACH), ("same", SAME), ("repeat", decoupled)):
        _write(repository, name, config)
    with serve("--model-repository", repository) as child:
        yield child.ready()
        assert child.stop() == 0
        assert child.err == []


def _write(repository: Path, name: str, config: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)


def picture() -> Any:
    """Two thirds green, the rest magenta."""
    image = np.zeros((1, 90, 60, 3), np.uint8)
    image[:, :60] = np.array(COLOURS["green"]) * 255
    image[:, 60:] = np.array(COLOURS["magenta"]) * 255
    return image


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, server: Child) -> Iterator[Any]:
    """The library's module and a client."""
    service = {"http": "HTTPService", "grpc": "GRPCInferenceService"}[request.param]
    module: Any = {"http": tritonclient.http, "grpc": tritonclient.grpc}[request.param]
    with module.InferenceServerClient(f"127.0.0.1:{server.port(service)}") as opened:
        yield module, opened


def ask(client: Any, *outputs: str, **options: int) -> Any:
    module, opened = client
    image = picture()
    given = module.InferInput("image", image.shape, "UINT8")
    given.set_data_from_numpy(image)
    wanted = [module.InferRequestedOutput(name, **options) for name in outputs] or None
    return opened.infer("image_ensemble", [given], outputs=wanted, request_id="p1")


def counts(client: Any) -> dict[str, int]:
    """How often each model was executed."""
    module, opened = client
    statistics = (
        opened.get_inference_statistics()
        if module is tritonclient.http
        else opened.get_inference_statistics(as_json=True)
    )
    return {item["name"]: int(item.get("execution_count", 0)) for item in statistics["model_stats"]}


def test_both_branches_answer_one_request(client: Any) -> None:
    before = counts(client)
    result = ask(client)
    names = list(COLOURS)
    assert result.as_numpy("colour").shape == (1, len(names))
    assert names[int(result.as_numpy("colour").argmax())] == "green"
    mask = result.as_numpy("mask")
    assert mask.shape == (1, SIDE, SIDE)
    assert mask[0, 5, 5] == names.index("green")
    assert mask[0, -5, 5] == names.index("magenta")
    executed = {name: count - before[name] for name, count in counts(client).items()}
    assert executed == {
        **dict.fromkeys((example.name for example in IMAGE), 1),
        "repeat": 0,
        "same": 0,
        "each": 0,
    }


def test_the_label_of_the_class_is_that_of_the_model_which_makes_it(client: Any) -> None:
    [top, second] = ask(client, "colour", class_count=2).as_numpy("colour").reshape(-1).tolist()
    assert top.decode().endswith(f":{list(COLOURS).index('green')}:green")
    assert second.decode().count(":") == 2


def test_a_stream_has_a_response_for_each_iteration(server: Child) -> None:
    answers: Queue[Any] = Queue()
    address = f"127.0.0.1:{server.port('GRPCInferenceService')}"
    with tritonclient.grpc.InferenceServerClient(address) as opened:
        opened.start_stream(lambda result, error: answers.put((result, error)))
        inputs = []
        for name, array in repeat(list(range(20))).items():
            datatype = array.dtype.name.upper()
            inputs.append(
                tritonclient.grpc.InferInput(name, array.shape, datatype).set_data_from_numpy(array)
            )
        opened.async_stream_infer("each", inputs, request_id="s1", enable_empty_final_response=True)
        values = []
        while True:
            result, error = answers.get(timeout=10)
            assert error is None
            response = result.get_response()
            assert (response.id, response.model_name) == ("s1", "each")
            if response.outputs:  # the last one may be final, or followed by an empty one that is
                values.append(int(result.as_numpy("VALUE")[0]))
            if response.parameters["triton_final_response"].bool_param:
                break
        opened.async_stream_infer("each", inputs[:2], request_id="s2")
        result, error = answers.get(timeout=10)
        assert "s2" in str(error)
        opened.stop_stream()
    assert values == list(range(20))
