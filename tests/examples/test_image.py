from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest

from tpx import examples
from tpx.examples.image import COLOURS, SIDE

NAMES = list(COLOURS)


def run(directory: Path, name: str, array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """The one output of an example."""
    (model,) = examples.write(directory, [name])
    path = model.path / "1" / "model.onnx"
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (answer,) = session.run(None, {session.get_inputs()[0].name: array})
    return np.asarray(answer)


def plain(colour: str, height: int = 40, width: int = 30) -> npt.NDArray[np.uint8]:
    """A picture of one colour."""
    return np.full((height, width, 3), np.array(COLOURS[colour]) * 255, dtype=np.uint8)


@pytest.mark.parametrize(("height", "width"), [(64, 64), (1, 1), (200, 3), (480, 640)])
def test_pictures_of_any_size_become_planes_from_0_to_1(height: int, width: int, tmp_path: Path) -> None:
    pictures = np.stack([plain("yellow", height, width), plain("blue", height, width)])
    planes = run(tmp_path, "image_preprocess", pictures)
    assert planes.shape == (2, 3, SIDE, SIDE)
    np.testing.assert_allclose(planes.mean(axis=(2, 3)), [[1, 1, 0], [0, 0, 1]], rtol=1e-6)


def test_each_colour_is_told_from_the_others(tmp_path: Path) -> None:
    planes = run(tmp_path, "image_preprocess", np.stack([plain(name) for name in NAMES]))
    scores = run(tmp_path, "image_classification", planes)
    assert scores.argmax(axis=1).tolist() == list(range(len(NAMES)))
    np.testing.assert_allclose(scores.sum(axis=1), 1, rtol=1e-5)
    labels = (tmp_path / "image_classification" / "labels.txt").read_text().splitlines()
    assert labels == NAMES


def test_a_mask_has_the_colour_of_each_pixel(tmp_path: Path) -> None:
    picture = np.concatenate([plain("red", 64, 32), plain("cyan", 64, 32)], axis=1)
    mask = run(tmp_path, "image_segmentation", run(tmp_path, "image_preprocess", picture[None]))
    assert mask.shape == (1, SIDE, SIDE)
    assert (mask[0, :, :32] == NAMES.index("red")).all()
    assert (mask[0, :, 32:] == NAMES.index("cyan")).all()
