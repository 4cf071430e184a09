"""Arrays and tensors are the same memory where that is safe."""

import ctypes
import gc
import weakref
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tests.serving.backends.pytorch import zoo
from tests.serving.backends.pytorch.opening import executors, tensors
from tpx.errors import ExecutionError
from tpx.protocol.datatypes import BY_NAME
from tpx.serving.backends.contract import GpuRange, GpuTensor
from tpx.serving.backends.pytorch.execution import CudaExecutor, Forward, GpuSettings, Staging
from tpx.serving.backends.pytorch.exported import ExportedProgram
from tpx.serving.backends.pytorch.program import Interface
from tpx.serving.backends.pytorch.tensors import Inputs, Lender, Outputs

LARGE = 32 << 10
TEXT = "max_batch_size: 8 " + tensors("input", "x FP32 -1") + tensors("output", "y FP32 -1")


def read_only(count: int, value: float = 1.0) -> npt.NDArray[Any]:
    """What a request's bytes look like."""
    return np.frombuffer(np.full(count, value, np.float32).tobytes(), np.float32).reshape(1, count)


def address(array: npt.NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def test_a_large_array_is_lent_without_a_copy_or_a_warning_once_the_model_is_known() -> None:
    lender = Lender("net", writes=None)
    array = read_only(LARGE)
    assert lender.tensor(array).data_ptr() != address(array)
    lender.settle()
    lent = lender.tensor(array)
    assert lent.data_ptr() == address(array)
    assert not array.flags.writeable


@pytest.mark.slow
def test_a_lent_array_lives_as_long_as_its_tensor() -> None:
    class Watched(np.ndarray):
        pass

    lender = Lender("net", writes=False)
    array = read_only(LARGE).view(Watched)
    gone = weakref.ref(array)
    tensor = lender.tensor(array)
    del array
    gc.collect()
    assert gone() is not None
    del tensor
    gc.collect()
    assert gone() is None


def test_a_small_array_is_copied_always() -> None:
    lender = Lender("net", writes=False)
    array = read_only(4)
    lender.tensor(array).fill_(9)
    assert array.tolist() == [[1, 1, 1, 1]]


def test_a_crooked_array_is_copied() -> None:
    lender = Lender("net", writes=False)
    array = np.frombuffer(bytes(4 * LARGE + 1), np.uint8)[1:].view(np.float32)
    assert lender.tensor(array).data_ptr() != address(array)


def test_a_model_that_writes_never_gets_what_is_not_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "model.py").write_text(
        "import torch\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return x.add_(1)\n"
    )
    array = read_only(LARGE)
    with executors(tmp_path, TEXT) as [executor]:
        for _ in range(3):
            assert executor.execute({"x": array})["y"][0, 0] == 2
            assert array[0, 0] == 1
    assert caplog.text.count("model 'net' modifies its inputs") == 1


def test_a_model_that_turns_to_writing_is_given_copies_from_then_on(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "import torch\nclass Net(torch.nn.Module):\n    def forward(self, x):\n"
        "        return x.add_(1) if x[0, 0] < 0 else x + 1\n"
    )
    with executors(tmp_path, TEXT) as [executor]:
        for _ in range(2):
            executor.execute({"x": read_only(LARGE)})
        executor.execute({"x": read_only(LARGE, -5.0)})
        array = read_only(LARGE, -5.0)
        assert executor.execute({"x": array})["y"][0, 0] == -4
        assert array[0, 0] == -5


def test_a_result_is_a_view_of_the_tensor_and_an_input_may_come_back_as_it_is(tmp_path: Path) -> None:
    zoo.save_exported(zoo.exported(zoo.Identity(), torch.ones(2, LARGE)), tmp_path / "model.pt2")
    array = read_only(LARGE)
    with executors(tmp_path) as [executor]:
        executor.execute({"x": array})
        assert address(executor.execute({"x": array})["OUTPUT__0"]) == address(array)


def test_a_result_that_is_the_models_own_memory_is_copied(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "import torch\nclass Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        self.register_buffer('kept', torch.zeros(1, {LARGE}))\n"
        "    def forward(self, x):\n        self.kept += x\n        return self.kept\n"
    )
    with executors(tmp_path, TEXT) as [executor]:
        first = executor.execute({"x": read_only(LARGE)})["y"]
        second = executor.execute({"x": read_only(LARGE)})["y"]
        assert (first[0, 0], second[0, 0]) == (1, 2)


def test_an_instance_that_may_use_any_device_computes_where_there_is_none(tmp_path: Path) -> None:
    zoo.save_exported(zoo.exported(zoo.Identity(), torch.ones(2, 3)), tmp_path / "model.pt2")
    program = ExportedProgram(tmp_path / "model.pt2", None, "net")
    call = Forward(
        model="net",
        program=program,
        inputs=Inputs({"x": 0}, {"x": "FP32"}, program.interface),
        outputs=Outputs({"y": 0}, {"y": "FP32"}, program.storages),
    )
    executor = CudaExecutor(call, GpuSettings(device=None))
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert executor.execute({"x": array})["y"].tolist() == array.tolist()
    with pytest.raises(ExecutionError, match="PyTorch execute failure"):
        executor.execute({"x": array[0]})
    executor.close()


def test_results_that_are_not_in_one_piece_are_made_so(tmp_path: Path) -> None:
    class Turned(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.transpose(0, 1)

    zoo.save_exported(torch.export.export(Turned(), (torch.ones(2, 3),)), tmp_path / "model.pt2")
    with executors(tmp_path) as [executor]:
        out = executor.execute({"x": np.arange(6, dtype=np.float32).reshape(2, 3)})["OUTPUT__0"]
        assert out.flags.c_contiguous
        assert out.tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize("how", ["x.to_sparse()", "torch.empty(2, device='meta')"])
def test_a_result_that_is_no_plain_tensor_is_an_execution_error(tmp_path: Path, how: str) -> None:
    source = f"import torch\n\nclass Odd(torch.nn.Module):\n    def forward(self, x):\n        return {how}\n"
    (tmp_path / "model.py").write_text(source, encoding="utf-8")
    tensor = "data_type: TYPE_FP32 dims: [ 2 ]"
    text = f"input [{{ name: 'x' {tensor} }}] output [{{ name: 'y' {tensor} }}]"
    with executors(tmp_path, text) as [executor], pytest.raises(ExecutionError, match="that cannot be sent"):
        executor.execute({"x": np.ones(2, np.float32)})


@pytest.mark.parametrize(("datatype", "shape"), [("FP32", (3, 2)), ("BF16", (3, 4)), ("BOOL", (3, 8))])
def test_parts_in_gpu_memory_and_of_messages_are_one_tensor(
    monkeypatch: pytest.MonkeyPatch, datatype: str, shape: tuple[int, int]
) -> None:
    """Host memory stands in for the GPU's: as_tensor reads the address of the interface."""

    def as_tensor(source: Any, device: torch.device) -> torch.Tensor:
        interface = source.__cuda_array_interface__
        assert (interface["typestr"], interface["data"][1], device) == ("|u1", False, torch.device("cpu"))
        [size] = interface["shape"]
        return torch.frombuffer(bytearray(ctypes.string_at(interface["data"][0], size)), dtype=torch.uint8)

    monkeypatch.setattr(torch, "as_tensor", as_tensor)
    dtype = BY_NAME[datatype].numpy
    rows = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    on_gpu = [GpuRange(address=address(row), size=row.nbytes) for row in rows]
    parts = [on_gpu[0], rows[1].tobytes(), on_gpu[2]]
    staging = Staging(torch.device("cpu"), pinned=False)
    values = Inputs({"x": 0}, {"x": datatype}, Interface(arguments=None, results=None)).values(
        {"x": cast("Any", GpuTensor(shape=shape, dtype=dtype, parts=parts))}, staging
    )
    assert values[0].shape == shape
    found = values[0].view(torch.uint16) if datatype == "BF16" else values[0]
    assert found.numpy().tolist() == rows.tolist()
