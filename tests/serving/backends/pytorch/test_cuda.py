"""Models on a GPU: streams, pinned staging, CUDA graphs. Skipped where there is none."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.serving.backends.pytorch import zoo
from tests.serving.backends.pytorch.opening import QUIET_JIT, check, executors, tensors
from tests.serving.backends.pytorch.test_module import TEXT, WANTED, X, written
from tests.serving.backends.pytorch.test_parameters import given
from tpx.errors import LoadError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that PyTorch can use"),
    pytest.mark.filterwarnings(QUIET_JIT),
    pytest.mark.filterwarnings(
        "ignore:The given buffer is not writable"
    ),  # PyTorch 2.11's own, in export.load
]

GPU = "kind: KIND_GPU count: 1 gpus: [0]"
IO = "max_batch_size: 8 " + tensors("input", "x FP32 3") + tensors("output", "y FP32 2")


@pytest.fixture(params=["model.pt", "model.pt2", "model.py"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Affine in each format that is not compiled."""
    if request.param == "model.pt":
        zoo.save_script(zoo.Affine(), tmp_path / "model.pt")
    elif request.param == "model.pt2":
        zoo.save_exported(zoo.exported(zoo.Affine(), torch.ones(2, 3)), tmp_path / "model.pt2")
    else:
        written(tmp_path)
    return tmp_path


@pytest.mark.parametrize("pinned", ["true", "false"])
def test_a_gpu_computes_the_same(model: Path, pinned: str) -> None:
    memory = f"input_pinned_memory {{ enable: {pinned} }} output_pinned_memory {{ enable: {pinned} }}"
    memory = f"optimization {{ {memory} }}"
    with executors(model, IO + memory, instances=GPU) as [executor]:
        for rows in (1, 2, 1):
            out = executor.execute({"x": X[:rows]})["y"]
            assert np.allclose(out, WANTED[:rows])


def test_a_graph_replays_with_the_inputs_of_each_run(model: Path) -> None:
    with executors(model, IO + given(CUDA_GRAPH_BATCH_SIZES="1,2"), instances=GPU) as [executor]:
        assert np.allclose(executor.execute({"x": X})["y"], WANTED)
        first = executor.execute({"x": X[:1]})["y"]
        second = executor.execute({"x": X[1:]})["y"]
        assert np.allclose(first, WANTED[:1])
        assert np.allclose(second, WANTED[1:])
        assert executor.execute({"x": np.ones((5, 3), np.float32)})["y"].shape == (5, 2)


def test_instances_compute_beside_each_other(model: Path) -> None:
    with executors(model, IO, instances="kind: KIND_GPU count: 3 gpus: [0]") as instances:
        for each in instances:
            assert np.allclose(each.execute({"x": X})["y"], WANTED)


def test_a_module_that_a_graph_cannot_hold_is_refused(tmp_path: Path) -> None:
    code = (
        "import torch\nclass Net(torch.nn.Module):\n"
        "    def forward(self, x):\n        return x[:, : int(x.sum().item() * 0) + 2]\n"
    )
    text = TEXT + given(CUDA_GRAPH_BATCH_SIZES="1")
    with (
        pytest.raises(LoadError, match="cannot be recorded as a CUDA graph"),
        executors(written(tmp_path, code, ""), text, instances=GPU),
    ):
        pass


def test_a_device_beyond_the_last_is_refused(model: Path) -> None:
    with pytest.raises(LoadError, match="specifies invalid or unsupported gpu id 99"):
        check(model, IO, instances="kind: KIND_GPU count: 1 gpus: [99]")


def test_bfloat16_and_bool_cross_to_the_device(tmp_path: Path) -> None:
    zoo.save_script(zoo.Identity(), tmp_path / "model.pt")
    for datatype, array in (
        ("BF16", np.array([[0x3F80, 0x7FC0]], np.uint16)),
        ("BOOL", np.array([[True, False]])),
    ):
        text = (
            "max_batch_size: 8 " + tensors("input", f"x {datatype} 2") + tensors("output", f"y {datatype} 2")
        )
        with executors(tmp_path, text, instances=GPU) as [executor]:
            assert executor.execute({"x": array})["y"].tolist() == array.tolist()
