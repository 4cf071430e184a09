"""Python models as upstream has them, served unchanged: streams, images, DLPack, a diffusion pipeline."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from onnx import numpy_helper

from tests.serving.backends.python.conftest import REPEAT
from tests.serving.backends.python.zoo import DECOUPLED, FP32, add, io
from tests.serving.live import Live, serving
from tests.serving.onnx_files import graph, node, value, write_model

Floats = npt.NDArray[np.float32]

NUMBER = "data_type: TYPE_INT32 dims: [ 1 ]"
IMAGE = "data_type: TYPE_FP32 dims: [ 3, 4, 6 ]"
_RANDOM = np.random.default_rng(7)
TABLE: Floats = _RANDOM.standard_normal((16, 5), np.float32)
MIXING: Floats = _RANDOM.standard_normal((5, 4), np.float32)
COLOURS: Floats = _RANDOM.standard_normal((3, 4), np.float32)
CLASSES: Floats = _RANDOM.standard_normal((3 * 4 * 6, 5), np.float32)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository = tmp_path_factory.mktemp("pipelines")
    add(repository, "square", config=io({"IN": NUMBER}, {"OUT": NUMBER}) + DECOUPLED)
    add(repository, "square_client", config=io({"IN": NUMBER}, {"SUM": NUMBER}))
    add(
        repository,
        "repeat_inline",
        config=REPEAT.replace("dims: [ -1 ] }]", "dims: [ -1 ] optional: true }]"),
    )
    _write_classifier(repository)
    _write_diffusion(repository)
    with serving(repository) as running:
        yield running


def _write_classifier(repository: Path) -> None:
    config = "max_batch_size: 4 " + io({"encoded": "data_type: TYPE_STRING dims: [ 1 ]"}, {"image": IMAGE})
    add(repository, "preprocess", config=config)
    network = graph(
        [node("Flatten", ["image"], ["flat"], axis=1), node("MatMul", ["flat", "w"], ["scores"])],
        [value("image", "FP32", "batch", 3, 4, 6)],
        [value("scores", "FP32", "batch", 5)],
        [numpy_helper.from_array(CLASSES, "w")],
    )
    write_model(repository, "classifier", network)
    (repository / "classify" / "1").mkdir(parents=True)
    (repository / "classify" / "config.pbtxt").write_text(
        "platform: 'ensemble' max_batch_size: 4 "
        + io(
            {"encoded": "data_type: TYPE_STRING dims: [ 1 ]"},
            {"scores": "data_type: TYPE_FP32 dims: [ 5 ]"},
        )
        + """ensemble_scheduling { step [
  { model_name: 'preprocess' model_version: -1
    input_map { key: 'encoded' value: 'encoded' } output_map { key: 'image' value: 'pixels' } },
  { model_name: 'classifier' model_version: -1
    input_map { key: 'image' value: 'pixels' } output_map { key: 'scores' value: 'scores' } }
] }"""
    )


def _write_diffusion(repository: Path) -> None:
    text = "data_type: TYPE_STRING dims: [ 1 ]"
    ids = "data_type: TYPE_INT64 dims: [ 8 ]"
    add(repository, "tokenizer", config="max_batch_size: 4 " + io({"prompt": text}, {"input_ids": ids}))
    encoder = graph(
        [
            node("Gather", ["table", "input_ids"], ["words"]),
            node("ReduceMean", ["words"], ["e"], axes=[1], keepdims=0),
        ],
        [value("input_ids", "INT64", "batch", 8)],
        [value("e", "FP32", "batch", 5)],
        [numpy_helper.from_array(TABLE, "table")],
    )
    encoder.graph.node[1].output[0] = encoder.graph.output[0].name = "embedding"
    write_model(repository, "text_encoder", encoder)
    unet = graph(
        [
            node("MatMul", ["context", "mixing"], ["channels"]),
            node("Mul", ["channels", "timestep"], ["scaled"]),
            node("Unsqueeze", ["scaled", "axes"], ["wide"]),
            node("Tanh", ["wide"], ["bounded"]),
            node("Mul", ["latent", "bounded"], ["noise"]),
        ],
        [
            value("latent", "FP32", "batch", 4, 8, 8),
            value("timestep", "FP32", "batch", 1),
            value("context", "FP32", "batch", 5),
        ],
        [value("noise", "FP32", "batch", 4, 8, 8)],
        [numpy_helper.from_array(MIXING, "mixing"), numpy_helper.from_array(np.array([2, 3]), "axes")],
    )
    write_model(repository, "unet", unet)
    vae = graph(
        [node("Conv", ["latent", "w"], ["colours"]), node("Tanh", ["colours"], ["image"])],
        [value("latent", "FP32", "batch", 4, 8, 8)],
        [value("image", "FP32", "batch", 3, 8, 8)],
        [numpy_helper.from_array(COLOURS[:, :, None, None], "w")],
    )
    write_model(repository, "vae", vae)
    words = "data_type: TYPE_STRING dims: [ 1 ]"
    config = io(
        {"prompt": words, "negative_prompt": words + " optional: true", "steps": NUMBER, "seed": NUMBER},
        {"image": "data_type: TYPE_UINT8 dims: [ -1, -1, 3 ]"},
    )
    add(repository, "diffusion", config=config)


def _generate(live: Live, prompt: bytes, negative: bytes | None, steps: int, seed: int) -> Any:
    arrays: dict[str, Any] = {"prompt": np.array([prompt], np.object_)}
    if negative is not None:
        arrays["negative_prompt"] = np.array([negative], np.object_)
    numbers = {"steps": np.array([steps], np.int32), "seed": np.array([seed], np.int32)}
    return live.infer_binary("diffusion", {**arrays, **numbers})


def _embedding(prompt: bytes) -> Floats:
    ids = np.zeros(8, np.int64)
    words = prompt.split()[:8]
    ids[: len(words)] = [sum(word) % 16 for word in words]
    return np.asarray(TABLE[ids].mean(axis=0), np.float32)


def _expected(prompt: bytes, negative: bytes, steps: int, seed: int) -> npt.NDArray[np.uint8]:
    """The same pipeline with numpy alone."""
    latents = np.random.RandomState(seed).randn(1, 4, 8, 8).astype(np.float32)
    for step in range(steps, 0, -1):
        with_text, without = (
            latents * np.tanh(_embedding(text) @ MIXING * step)[None, :, None, None]
            for text in (prompt, negative)
        )
        latents = (latents - (without + 2.0 * (with_text - without)) / steps).astype(np.float32)
    image = np.tanh(np.einsum("oc,nchw->nohw", COLOURS, latents))
    pixels = np.clip((image + 1) * 127.5, 0, 255).round().astype(np.uint8)
    return np.asarray(pixels.transpose(0, 2, 3, 1)[0])


@pytest.mark.parametrize("negative", [b"blurry", None])
def test_a_diffusion_pipeline_makes_the_image_that_numpy_makes(live: Live, negative: bytes | None) -> None:
    answer = _generate(live, b"a red fox in the snow", negative, 6, 3)
    assert answer.status == 200, answer.body
    image = np.frombuffer(answer.tail, np.uint8).reshape(8, 8, 3).astype(int)
    expected = _expected(b"a red fox in the snow", negative or b"", 6, 3).astype(int)
    assert np.abs(image - expected).max() <= 1
    assert expected.std() > 10


def test_many_pipelines_run_at_once(live: Live) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda seed: _generate(live, b"some words", b"none", 4, seed), range(12)))
    for seed, answer in enumerate(answers):
        image = np.frombuffer(answer.tail, np.uint8).astype(int)
        assert np.abs(image - _expected(b"some words", b"none", 4, seed).reshape(-1)).max() <= 1


def _ppm(image: npt.NDArray[np.uint8]) -> bytes:
    height, width, _ = image.shape
    return b"P6\n%d\n%d\n255\n" % (width, height) + image.tobytes()


def test_an_ensemble_of_preprocessing_and_a_network_classifies_encoded_images(live: Live) -> None:
    images = [_RANDOM.integers(0, 256, (8, 12, 3)).astype(np.uint8) for _ in range(2)]
    encoded = np.array([[_ppm(image)] for image in images], np.object_)
    answer = live.infer_binary("classify", {"encoded": encoded})
    assert answer.status == 200, answer.body
    pixels = np.stack([(image[::2, ::2].transpose(2, 0, 1) / 255 - 0.5) / 0.25 for image in images])
    expected = pixels.reshape(2, -1) @ CLASSES
    assert np.allclose(np.frombuffer(answer.tail, np.float32).reshape(2, 5), expected, atol=1e-3)


def test_what_preprocessing_refuses_is_the_ensembles_error(live: Live) -> None:
    answer = live.infer_binary("classify", {"encoded": np.array([[b"GIF89a\n\n\n\n\n"]], np.object_)})
    assert "TritonModelException: this is no PPM file" in answer.error


@pytest.mark.parametrize("number", [0, 1, 40])
def test_a_decoupled_square_is_summed_by_its_caller(live: Live, number: int) -> None:
    answer = live.infer_binary("square_client", {"IN": np.array([number], np.int32)})
    assert answer.status == 200, answer.body
    assert np.frombuffer(answer.tail, np.int32).tolist() == [number * number]


def test_responses_without_threads_are_sent_while_execute_runs(live: Live) -> None:
    body = json.dumps({"IN": [5, 6, 7], "DELAY": [0]}).encode()
    answer = live.http("POST", "/v2/models/repeat_inline/generate_stream", body)
    events = [json.loads(line[6:]) for line in answer.body.decode().split("\n\n") if line]
    assert [(event["OUT"], event["IDX"]) for event in events] == [(5, 0), (6, 1), (7, 2)]


@pytest.mark.slow  # importing torch takes seconds
def test_torch_takes_and_gives_tensors_through_dlpack(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    two = {"INPUT0": FP32.replace("-1", "-1, -1"), "INPUT1": FP32.replace("-1", "-1, -1")}
    outputs = {name.replace("IN", "OUT"): rest for name, rest in two.items()}
    add(tmp_path, "torch_add_sub", config=io(two, outputs))
    a, b = _RANDOM.random((2, 30, 1000), np.float32)
    with serving(tmp_path) as live:
        for rows in (1, 30):
            answer = live.infer_binary("torch_add_sub", {"INPUT0": a[:rows], "INPUT1": b[:rows]})
            assert answer.status == 200, answer.body
            both = np.frombuffer(answer.tail, np.float32).reshape(2, rows, 1000)
            assert np.array_equal(both[0], (a + b)[:rows])
            assert np.array_equal(both[1], (a - b)[:rows])
