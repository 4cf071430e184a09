"""The PyTorch example, served as it is written."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serving.live import serving
from tpx import examples
from tpx.examples.repository import EXAMPLES


def test_it_sees_what_the_same_network_in_onnx_sees(tmp_path: Path, digits: Any) -> None:
    (mnist, torch) = examples.write(tmp_path, ["mnist", "mnist_torch"])
    images = digits.images[:16].astype(np.float32)[:, None]
    with serving(tmp_path) as live:
        answers = [live.infer_binary(name, {"image": images}) for name in (mnist.name, torch.name)]
    wanted, seen = (np.frombuffer(answer.tail, np.float32).reshape(16, 10) for answer in answers)
    assert np.allclose(seen, wanted, atol=1e-5)
    assert (seen.argmax(1) == digits.target[:16]).mean() > 0.9


def test_its_announced_size_covers_it(tmp_path: Path) -> None:
    (model,) = examples.write(tmp_path, ["mnist_torch"])
    blocks = sum(path.stat().st_blocks * 512 for path in [model.path, *model.path.rglob("*")])
    assert blocks <= EXAMPLES["mnist_torch"].size_bytes


def test_it_is_written_by_default_only_where_it_can_be_served(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "mnist_torch" not in examples.ALL
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    assert set(examples.servable()) - {"tiny"} == {*examples.ALL, "mnist_torch"}
    monkeypatch.setitem(sys.modules, "torch", None)
    assert set(examples.servable()) - {"tiny"} == set(examples.ALL)
