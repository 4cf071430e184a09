"""AOTInductor packages: compiled here, for this machine."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.e2e.child import serve
from tests.serving.backends.pytorch import zoo
from tests.serving.backends.pytorch.opening import check, executors, run, tensors
from tests.serving.backends.pytorch.test_module import WANTED
from tests.serving.backends.pytorch.test_served import add, library_of
from tpx.errors import ConfigError, ExecutionError, LoadError

pytestmark = [
    pytest.mark.slow,  # compiling takes half a minute
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore"),  # of PyTorch's compiler, about itself
]

X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
INPUTS = {
    "labels": ("ARGS[0]", "KWARGS[scale]"),
    "indices": ("INPUT__0", "INPUT__1"),
    "order": ("x", "scale"),
}
OUTPUTS = (
    "output [{ name: '%s' data_type: TYPE_FP32 dims: [3] }, "
    "{ name: '%s' data_type: TYPE_INT64 dims: [1] reshape {} }]"
)


def text(first: str, second: str, third: str = "RESULT[scaled]", fourth: str = "RESULT[parts][1]") -> str:
    return (
        "max_batch_size: 16 "
        + tensors("input", f"{first} FP32 3", f"{second} FP32 3")
        + OUTPUTS % (third, fourth)
    )


@pytest.mark.parametrize("convention", INPUTS)
def test_tensors_are_called_as_triton_calls_them(package: Path, convention: str) -> None:
    first, second = INPUTS[convention]
    out = run(package, text(first, second), **{first: X, second: 2 * np.ones_like(X)})
    assert out["RESULT[scaled]"].tolist() == (X * 2).tolist()
    assert out["RESULT[parts][1]"].tolist() == [2, 2]
    out = run(package, text(first, second, "OUTPUT__0", "OUTPUT__2"), **{first: X, second: X})
    assert out["OUTPUT__2"].tolist() == [2, 2]


def test_a_tensor_of_another_shape_is_an_error_and_not_read_beyond_its_end(package: Path) -> None:
    narrow = text("ARGS[0]", "KWARGS[scale]").replace(
        "dims: [3] }, { name: 'KWARGS", "dims: [2] }, { name: 'KWARGS"
    )
    with executors(package, narrow) as [executor]:
        with pytest.raises(ExecutionError, match="unmatched dim value at 1, expected: 3, but got: 2"):
            executor.execute({"ARGS[0]": X[:, :2].copy(), "KWARGS[scale]": X})
        with pytest.raises(ExecutionError, match="unmatched dtype"):
            executor.execute({"ARGS[0]": X.astype(np.float64), "KWARGS[scale]": X})
        assert executor.execute({"ARGS[0]": X, "KWARGS[scale]": X})["RESULT[parts][1]"].tolist() == [2, 2]


def test_instances_that_share_run_at_the_same_time(package: Path) -> None:
    shared = "parameters { key: 'ENABLE_WEIGHT_SHARING' value { string_value: 'true' } }"
    with executors(package, text("a", "b") + shared, instances="kind: KIND_CPU count: 2") as (one, other):
        assert one.execute({"a": X, "b": X}).keys() == other.execute({"a": X, "b": X}).keys()


def test_what_the_package_does_not_have_is_refused(package: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match="RESULT__9 in the model configuration refers to an output index"):
        check(package, text("a", "b", "RESULT__9", "x__1"))
    with pytest.raises(ConfigError, match="must contain at least one input"):
        check(package)
    assert "Auto-complete configuration is not supported for Inductor models" in caplog.text
    assert "runs AOTInductor packages while holding the GIL" in caplog.text


def test_weights_may_be_beside_the_code(tmp_path: Path) -> None:
    zoo.package(
        zoo.exported(zoo.Affine(), torch.ones(2, 3)),
        tmp_path / "model.pt2",
        {
            "aot_inductor.package_constants_in_so": False,
            "aot_inductor.package_constants_on_disk_format": "pickle_weights",
        },
    )
    one = "max_batch_size: 8 " + tensors("input", "x FP32 3") + tensors("output", "y FP32 2")
    assert run(tmp_path, one, x=X)["y"].tolist() == WANTED


def test_a_damaged_package_is_refused(package: Path, tmp_path: Path) -> None:
    import zipfile

    with (
        zipfile.ZipFile(package / "model.pt2") as source,
        zipfile.ZipFile(tmp_path / "model.pt2", "w") as target,
    ):
        for each in source.namelist():
            target.writestr(each, b"rubbish" if each.endswith(".so") else source.read(each))
    with pytest.raises(LoadError, match="failed to load model 'net'"):
        check(tmp_path, text("a", "b"))


@pytest.mark.e2e
def test_a_compiled_package_is_served_by_two_instances(package: Path, tmp_path: Path) -> None:
    text = (
        'platform: "torch_aoti" max_batch_size: 16 dynamic_batching { } '
        "instance_group [{ kind: KIND_CPU count: 2 }] "
        'parameters { key: "ENABLE_WEIGHT_SHARING" value { string_value: "true" } } '
        + tensors("input", "ARGS[0] FP32 3", "KWARGS[scale] FP32 3")
        + tensors("output", "RESULT[scaled] FP32 3")
    )
    shutil.copy(package / "model.pt2", add(tmp_path, "compiled", text) / "model.pt2")
    with serve("--model-repository", tmp_path) as child:
        child.wait_for("is ready|failed to load", 50)
        child.ready()
        for protocol in ("http", "grpc"):
            x = np.arange(6, dtype=np.float32).reshape(2, 3)
            answer = library_of(child, protocol).infer(
                "compiled", None, **{"ARGS[0]": x, "KWARGS[scale]": x + 1}
            )
            assert np.allclose(answer.as_numpy("RESULT[scaled]"), x * (x + 1))
        assert child.stop() == 0
