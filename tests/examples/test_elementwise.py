from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from tpx import examples


def session(directory: Path, name: str) -> onnxruntime.InferenceSession:
    (model,) = examples.write(directory, [name])
    path = model.path / "1" / "model.onnx"
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_add_sub_gives_the_sum_and_the_difference(batch: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, batch, 16)).astype(np.float32)
    total, difference = session(tmp_path, "add_sub").run(
        ["OUTPUT0", "OUTPUT1"], {"INPUT0": first, "INPUT1": second}
    )
    np.testing.assert_array_equal(total, first + second)
    np.testing.assert_array_equal(difference, first - second)


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_identity_gives_back_its_input(batch: int, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(batch, 16)).astype(np.float32)
    (answer,) = session(tmp_path, "identity").run(["OUTPUT0"], {"INPUT0": rows})
    np.testing.assert_array_equal(answer, rows)


@pytest.mark.parametrize("name", ["add_sub", "identity"])
def test_the_first_dimension_of_every_tensor_is_free(name: str, tmp_path: Path) -> None:
    opened = session(tmp_path, name)
    shapes = [tensor.shape for tensor in [*opened.get_inputs(), *opened.get_outputs()]]
    assert all(isinstance(shape[0], str) and shape[1:] == [16] for shape in shapes)
