import filecmp
import hashlib
import shutil
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest

from tpx import examples
from tpx.examples.alexnet import PARAMETERS, parameters, uniform_chunks
from tpx.examples.repository import EXAMPLES

WEIGHTS_SHA256 = "f0a61c2eabac0024241149c47b1e63a7ece88b9c96b417aec343452568156852"


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    (model,) = examples.write(tmp_path_factory.mktemp("models"), ["alexnet"])
    yield model.path / "1"
    shutil.rmtree(model.path)  # pytest would keep 244 MB of each of the last runs


@pytest.fixture(scope="module")
def session(version: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(
        str(version / "model.onnx"), options, providers=["CPUExecutionProvider"]
    )


def answer(session: onnxruntime.InferenceSession, brightest: float, seed: int = 0) -> npt.NDArray[np.float32]:
    pixels = np.random.default_rng(seed).random((1, 3, 224, 224), dtype=np.float32) * np.float32(brightest)
    (probabilities,) = session.run(["prob_1"], {"data_0": pixels})
    return np.asarray(probabilities)


def test_it_has_alexnets_parameters() -> None:
    assert sum(parameter.count for parameter in parameters()) == PARAMETERS


def test_the_same_seed_gives_the_same_values_in_bounds_and_another_seed_others() -> None:
    def draw(seed: int) -> npt.NDArray[np.float32]:
        return np.concatenate(list(uniform_chunks(np.random.PCG64(seed), (1 << 20) + 7, bound=0.25)))

    values = draw(1)
    assert len(values) == (1 << 20) + 7
    assert np.abs(values).max() <= 0.25
    assert values.mean() == pytest.approx(0, abs=1e-3)
    assert values.std() == pytest.approx(0.25 / 3**0.5, rel=1e-2)
    np.testing.assert_array_equal(values, draw(1))
    assert (values != draw(2)).mean() > 0.99


@pytest.mark.slow
def test_the_shapes_are_the_architectures(version: Path) -> None:
    onnx.checker.check_model(str(version / "model.onnx"), full_check=True)
    graph = onnx.shape_inference.infer_shapes(
        onnx.load(version / "model.onnx", load_external_data=False)
    ).graph
    shapes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in [*graph.input, *graph.value_info, *graph.output]
    }
    expected = {
        "data_0": [1, 3, 224, 224],
        "conv1_1": [1, 96, 54, 54],
        "pool1_1": [1, 96, 26, 26],
        "conv2_1": [1, 256, 26, 26],
        "pool2_1": [1, 256, 12, 12],
        "conv3_1": [1, 384, 12, 12],
        "conv4_1": [1, 384, 12, 12],
        "conv5_1": [1, 256, 12, 12],
        "pool5_1": [1, 256, 6, 6],
        "fc6_1": [1, 4096],
        "fc7_1": [1, 4096],
        "prob_1": [1, 1000],
    }
    assert {name: shapes[name] for name in expected} == expected
    groups = [attr.i for node in graph.node for attr in node.attribute if attr.name == "group"]
    assert groups == [1, 2, 1, 2, 2]


@pytest.mark.slow
@pytest.mark.parametrize("brightest", [0, 1, 255])
def test_the_softmax_is_finite_and_neither_flat_nor_one_class(
    session: onnxruntime.InferenceSession, brightest: float
) -> None:
    probabilities = answer(session, brightest)
    assert probabilities.shape == (1, 1000)
    assert np.isfinite(probabilities).all()
    assert probabilities.sum() == pytest.approx(1, rel=1e-5)
    assert 1.1 / 1000 < probabilities.max() < 0.9


@pytest.mark.slow
def test_different_images_get_different_answers(session: onnxruntime.InferenceSession) -> None:
    assert not np.allclose(answer(session, 1, seed=1), answer(session, 1, seed=2), rtol=1e-3)


@pytest.mark.slow
def test_the_weights_are_the_same_bytes_on_every_machine(version: Path) -> None:
    with (version / "model.onnx.data").open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == WEIGHTS_SHA256


@pytest.mark.slow
def test_a_second_writing_is_the_same_and_takes_little_memory(version: Path, tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        (again,) = examples.write(tmp_path, ["alexnet"])
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 32 << 20
    for name in ("model.onnx", "model.onnx.data"):
        assert filecmp.cmp(version / name, again.path / "1" / name, shallow=False)
    shutil.rmtree(again.path)


@pytest.mark.slow
def test_the_announced_size_covers_the_whole_model(version: Path) -> None:
    model = version.parent
    size_bytes = sum(path.stat().st_blocks * 512 for path in [model, *model.rglob("*")])
    assert size_bytes <= EXAMPLES["alexnet"].size_bytes < 1.01 * size_bytes
