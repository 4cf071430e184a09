"""OpenVINO models as a client meets them, compared with ONNX Runtime on the files that they were made of."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException
from tritonclient.utils import shared_memory as shm

from tests.serving import onnx_files
from tests.serving.backends.openvino.models import classifier, convert, parameters
from tests.serving.live import Live, serving

pytestmark = pytest.mark.e2e

IMAGES = np.random.default_rng(3).normal(size=(20, 1, 8, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository = tmp_path_factory.mktemp("models")
    convert(classifier(), repository / "xml" / "1")
    onnx_files.save(classifier(), repository / "onnx" / "1" / "model.onnx")
    (repository / "onnx" / "config.pbtxt").write_text(
        "backend: 'openvino' default_model_filename: 'model.onnx' max_batch_size: 32 "
        "instance_group [{ count: 2 }] " + parameters(PERFORMANCE_HINT="THROUGHPUT"),
        encoding="utf-8",
    )
    (repository / "broken" / "1").mkdir(parents=True)
    (repository / "broken" / "1" / "model.xml").write_text("no model", encoding="utf-8")
    with serving(repository, strict_readiness=False, exit_on_error=False) as server:
        yield server


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Scores and digits of the images by ONNX Runtime."""
    path = onnx_files.save(classifier(), tmp_path_factory.mktemp("onnx") / "model.onnx")
    scores, digits = ort.InferenceSession(path).run(None, {"image": IMAGES})
    return scores, digits


def asked(module: Any, live: Live, model: str, images: npt.NDArray[Any]) -> Any:
    """The answer to these images, by a client of its own."""
    service = "HTTPService" if module is tritonclient.http else "GRPCInferenceService"
    image = module.InferInput("image", images.shape, "FP32").set_data_from_numpy(images)
    with module.InferenceServerClient(f"127.0.0.1:{live.ports[service]}") as client:
        return client.infer(model, [image])


@pytest.mark.parametrize("module", [tritonclient.http, tritonclient.grpc])
@pytest.mark.parametrize("model", ["xml", "onnx"])
def test_answers_are_those_of_onnx_runtime(
    live: Live, expected: tuple[npt.NDArray[Any], npt.NDArray[Any]], module: Any, model: str
) -> None:
    for start, rows in ((0, 1), (1, 4), (5, 3)):
        answer = asked(module, live, model, IMAGES[start : start + rows])
        scores, digits = (each[start : start + rows] for each in expected)
        assert np.allclose(answer.as_numpy("scores"), scores, atol=1e-4)
        assert answer.as_numpy("digit").reshape(-1).tolist() == digits.tolist()


def test_the_platform_and_the_completed_configuration_are_told(live: Live) -> None:
    config = live.get("/v2/models/xml/config").json
    assert (config["backend"], config["max_batch_size"]) == ("openvino", 4)
    assert [each["dims"] for each in config["input"] + config["output"]] == [[1, 8, 8], [10], [1]]


def test_inputs_may_lie_in_shared_memory(live: Live, expected: tuple[npt.NDArray[Any], Any]) -> None:
    region = shm.create_shared_memory_region("images", "/tpx_test_openvino", IMAGES.nbytes)
    try:
        shm.set_shared_memory_region(region, [IMAGES])
        with tritonclient.http.InferenceServerClient(f"127.0.0.1:{live.http_port}") as client:
            client.register_system_shared_memory("images", "/tpx_test_openvino", IMAGES.nbytes)
            image = tritonclient.http.InferInput("image", IMAGES.shape, "FP32")
            image.set_shared_memory("images", IMAGES.nbytes)
            answer = client.infer("onnx", [image])
            client.unregister_system_shared_memory("images")
    finally:
        shm.destroy_shared_memory_region(region)
    assert np.allclose(answer.as_numpy("scores"), expected[0], atol=1e-4)


def test_a_model_that_cannot_be_read_harms_only_itself(live: Live) -> None:
    [broken] = [each for each in live.http("POST", "/v2/repository/index").json if each["name"] == "broken"]
    assert broken["state"] == "UNAVAILABLE"
    assert "openvino cannot read" in broken["reason"]
    with pytest.raises(InferenceServerException, match="unexpected shape for input 'image'"):
        asked(tritonclient.http, live, "xml", IMAGES[:, :, :4])
    assert asked(tritonclient.http, live, "xml", IMAGES[:1]).as_numpy("scores").shape == (1, 10)
