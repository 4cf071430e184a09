from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from tpx import examples
from tpx.examples.mnist import held_out


@pytest.fixture
def packaged() -> onnxruntime.InferenceSession:
    data = (resources.files("tpx.examples") / "mnist.onnx").read_bytes()
    return onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])


@pytest.mark.slow
def test_it_reads_97_of_100_digits_that_training_never_saw(
    packaged: onnxruntime.InferenceSession, digits: Any
) -> None:
    unseen = held_out(digits.target)
    images = digits.images[unseen].astype(np.float32)[:, None]
    (probabilities,) = packaged.run(["probabilities"], {"image": images})
    assert (probabilities.argmax(axis=1) == digits.target[unseen]).mean() >= 0.97


def test_the_answers_are_probabilities_for_any_batch(packaged: onnxruntime.InferenceSession) -> None:
    for batch in (1, 5, 16):
        images = np.random.default_rng(batch).uniform(0, 16, (batch, 1, 8, 8)).astype(np.float32)
        (probabilities,) = packaged.run(["probabilities"], {"image": images})
        assert probabilities.shape == (batch, 10)
        assert (probabilities >= 0).all()
        np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)


@pytest.mark.slow
def test_a_fifth_of_every_class_is_held_out(digits: Any) -> None:
    labels = digits.target
    unseen = held_out(labels)
    for digit in range(10):
        of_class = labels == digit
        assert unseen[of_class].sum() == -(-of_class.sum() // 5)


def test_the_split_depends_only_on_the_order_within_a_class() -> None:
    assert held_out(np.array([1, 1, 0, 1, 1, 1, 1, 0])).tolist() == [
        True, False, True, False, False, False, True, False,
    ]  # fmt: skip


def test_the_package_carries_the_trained_file_in_less_than_a_megabyte(tmp_path: Path) -> None:
    shipped = (resources.files("tpx.examples") / "mnist.onnx").read_bytes()
    assert 10_000 < len(shipped) < 1_000_000
    (model,) = examples.write(tmp_path, ["mnist"])
    assert (model.path / "1" / "model.onnx").read_bytes() == shipped
