"""DALI models as a client meets them, compared with PIL."""

import re
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvidia.dali", reason="pip install 'tpx[dali]', or run make test-frameworks")

import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.serving.backends.dali.pipelines import (
    DECODE,
    RAGGED,
    encoded,
    outcome,
    picture,
    write_model,
)
from tests.serving.live import Live, serving
from tpx import examples

pytestmark = pytest.mark.e2e

DOUBLE = (
    "max_batch_size: 8 input [{ name: 'x' data_type: TYPE_INT32 dims: [-1] }] "
    "output [{ name: 'twice' data_type: TYPE_INT32 dims: [-1] }, "
    "{ name: 'shape' data_type: TYPE_INT64 dims: [1] }]"
)
SPLIT = (
    "max_batch_size: 8 input [{ name: 'x' data_type: TYPE_INT32 dims: [-1, 2] }] "
    "output [{ name: 'twice' data_type: TYPE_INT32 dims: [2] }, "
    "{ name: 'shape' data_type: TYPE_INT64 dims: [2] }]"
    "parameters { key: 'split_along_outer_axis' value { string_value: 'twice' } }"
)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository = tmp_path_factory.mktemp("models")
    examples.write(repository, ["photo_ensemble"])
    write_model(
        repository, "decode", "dynamic_batching { max_queue_delay_microseconds: 300000 }", dali_py=DECODE
    )
    write_model(repository, "double", DOUBLE, dali_py=RAGGED)
    write_model(repository, "split", SPLIT, dali_py=RAGGED)
    for name, config, said in BROKEN:
        write_model(repository, name, config, **said)
    with serving(repository, strict_readiness=False, exit_on_error=False) as server:
        yield server


BROKEN: list[tuple[str, str, dict[str, str]]] = [
    ("undeclared", "max_batch_size: 8", {"dali_py": RAGGED}),
    ("mistyped", DOUBLE.replace("TYPE_INT32", "TYPE_FP32", 1), {"dali_py": RAGGED}),
    ("misnamed", DOUBLE.replace("'x'", "'z'"), {"dali_py": RAGGED}),
    ("garbled", "", {"model.dali": "nothing"}),
    ("missing", "", {}),
    ("raising", "", {"dali_py": "raise RuntimeError('not today')"}),
    (
        "threads",
        DOUBLE + "parameters { key: 'num_threads' value { string_value: 'x' } }",
        {"dali_py": RAGGED},
    ),
]


def port(live: Live, module: Any) -> int:
    return live.ports["HTTPService" if module is tritonclient.http else "GRPCInferenceService"]


def test_the_configuration_is_completed_from_the_pipeline(live: Live) -> None:
    config = live.get("/v2/models/decode/config").json
    assert config["max_batch_size"] == 8
    [given] = config["input"]
    assert (given["name"], given["data_type"], given["dims"]) == ("encoded", "TYPE_UINT8", [-1])
    assert given["allow_ragged_batch"] is True
    assert [(out["data_type"], out["dims"]) for out in config["output"]] == [("TYPE_UINT8", [-1, -1, -1])]


@pytest.mark.parametrize("module", [tritonclient.http, tritonclient.grpc])
def test_pixels_are_those_that_were_encoded(live: Live, module: Any) -> None:
    pixels = picture(31, 17)
    name = live.get("/v2/models/decode").json["outputs"][0]["name"]
    answer = outcome(module, port(live, module), "decode", encoded=encoded(pixels)[np.newaxis])
    assert np.array_equal(answer.as_numpy(name)[0], pixels)


def test_pictures_of_different_sizes_are_one_batch_and_a_broken_one_harms_only_itself(live: Live) -> None:
    before = live.get("/v2/models/decode/stats").json["model_stats"][0]
    found: dict[int, Any] = {}

    def ask(index: int) -> None:
        data = np.arange(50, dtype=np.uint8) if index == 2 else encoded(picture(9 + index, 30 - index, index))
        try:
            found[index] = outcome(tritonclient.http, live.http_port, "decode", encoded=data[np.newaxis])
        except InferenceServerException as exc:
            found[index] = exc

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "dali error: Error in CPU operator `nvidia.dali.fn.decoders.image`: " in str(found.pop(2))
    for index, answer in found.items():
        (pixels,) = answer.as_numpy(answer.get_response()["outputs"][0]["name"])
        assert np.array_equal(pixels, picture(9 + index, 30 - index, index))
    after = live.get("/v2/models/decode/stats").json["model_stats"][0]
    assert after["inference_count"] - before["inference_count"] == 4
    assert after["execution_count"] - before["execution_count"] < 6


def test_outputs_are_matched_by_position_and_may_differ_in_shape_between_requests(live: Live) -> None:
    for size in (3, 5):
        answer = outcome(
            tritonclient.grpc, port(live, tritonclient.grpc), "double", x=np.ones((2, size), np.int32)
        )
        assert answer.as_numpy("twice").tolist() == [[2] * size] * 2
        assert answer.as_numpy("shape").tolist() == [[size]] * 2


def test_split_outputs_lose_their_outer_axis(live: Live) -> None:
    answer = outcome(
        tritonclient.http, live.http_port, "split", x=np.arange(12, dtype=np.int32).reshape(2, 3, 2)
    )
    assert answer.as_numpy("twice").tolist() == (2 * np.arange(12).reshape(6, 2)).tolist()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("undeclared", "does not declare the ndim of 'x'"),
        ("mistyped", "'x' is TYPE_FP32 in the configuration, the pipeline has INT32"),
        ("misnamed", "the pipeline's inputs are x, the configuration has z"),
        ("garbled", "not a serialized DALI pipeline"),
        ("missing", "unable to find"),
        ("raising", "cannot be serialized: .*not today"),
        (
            "threads",
            "parameter 'num_threads' of model 'threads' must be a whole number from 1 to 1024, got 'x'",
        ),
    ],
)
def test_a_model_that_does_not_fit_says_why(live: Live, name: str, said: str) -> None:
    [model] = [each for each in live.http("POST", "/v2/repository/index").json if each["name"] == name]
    assert model["state"] == "UNAVAILABLE"
    assert re.search(said, model["reason"]), model["reason"]


def test_the_example_tells_the_colour_of_photos_of_any_size(live: Live) -> None:
    labels = {0: "black", 2: "red", 4: "blue"}
    for (index, colour), (width, height), kind in zip(
        labels.items(), ((20, 30), (300, 200), (64, 64)), ("PNG", "JPEG", "PNG"), strict=True
    ):
        pixels = np.zeros((height, width, 3), np.uint8)
        if colour != "black":
            pixels[..., ("red", "green", "blue").index(colour)] = 255
        answer = outcome(
            tritonclient.http, live.http_port, "photo_ensemble", photo=encoded(pixels, kind)[np.newaxis]
        )
        assert int(answer.as_numpy("colour")[0].argmax()) == index
        assert set(answer.as_numpy("mask").reshape(-1).tolist()) == {index}
