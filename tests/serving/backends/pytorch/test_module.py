"""An `nn.Module` in model.py with its weights, and what is wrong with some of them."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from tests.serving.backends.pytorch import zoo
from tests.serving.backends.pytorch.opening import check, executors, run, tensors
from tpx.errors import ConfigError, ExecutionError, LoadError

X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
TEXT = "max_batch_size: 8 runtime: 'model.py' " + tensors("input", "x FP32 3") + tensors("output", "y FP32 2")
CODE = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x)
"""
WANTED = [[24.0, 0.5 - 2 + 12 - 10], [42.0, 2 - 5 + 24 - 10]]


def written(directory: Path, code: str = CODE, weights: str = "model.safetensors") -> Path:
    """A version with this model.py and Affine's weights."""
    (directory / "model.py").write_text(code, encoding="utf-8")
    state = zoo.Affine().state_dict()
    if weights.endswith(".safetensors"):
        safetensors.torch.save_file(state, directory / weights)
    elif weights:
        torch.save(state, directory / weights)
    return directory


@pytest.mark.parametrize("weights", ["model.safetensors", "model.pt"])
def test_a_class_is_filled_with_its_weights(tmp_path: Path, weights: str) -> None:
    assert run(written(tmp_path, weights=weights), TEXT, x=X)["y"].tolist() == WANTED


def test_weights_that_are_called_as_an_archive_lead_to_the_class_beside_them(tmp_path: Path) -> None:
    written(tmp_path, weights="model.pt")
    assert run(tmp_path, TEXT.replace("runtime: 'model.py'", ""), x=X)["y"].tolist() == WANTED


def test_a_file_of_another_name_has_weights_of_that_name(tmp_path: Path) -> None:
    written(tmp_path, weights="net.safetensors")
    (tmp_path / "model.py").rename(tmp_path / "net.py")
    assert run(tmp_path, TEXT + "default_model_filename: 'net.py'", x=X)["y"].tolist() == WANTED


def test_a_model_without_weights_is_what_its_constructor_makes(tmp_path: Path) -> None:
    code = CODE + "        # nothing\n" + "Net.forward = lambda self, x: x[:, :2] * 2\n"
    assert run(written(tmp_path, code, ""), TEXT, x=X)["y"].tolist() == (X[:, :2] * 2).tolist()


def test_neighbours_are_imported_relatively_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "layers.py").write_text("import torch\nclass Base(torch.nn.Module):\n    pass\n")
    code = CODE.replace("import torch", "import torch\nfrom .layers import Base").replace(
        "(torch.nn.Module)", "(Base)"
    )
    written(tmp_path, code)
    assert run(tmp_path, TEXT, x=X)["y"].tolist() == WANTED


def test_a_module_is_in_evaluation_mode(tmp_path: Path) -> None:
    code = CODE.replace("self.layer(x)", "torch.nn.functional.dropout(self.layer(x), 0.9, self.training)")
    assert run(written(tmp_path, code), TEXT, x=X)["y"].tolist() == WANTED


def test_arguments_have_names_defaults_and_keywords(tmp_path: Path) -> None:
    code = CODE.replace("def forward(self, x):", "def forward(self, x, plus=None, *, times=1):").replace(
        "return self.layer(x)", "return (x + (0 if plus is None else plus)) * times"
    )
    text = (
        "input [{name: 'times' data_type: TYPE_FP32 dims: [1]}, {name: 'x' data_type: TYPE_FP32 dims: [3]}]"
    )
    out = run(
        written(tmp_path, code), "max_batch_size: 8 " + text + tensors("output", "y FP32 3"),
        x=X, times=np.array([[2], [3]], np.float32),
    )  # fmt: skip
    assert out["y"].tolist() == (X * [[2], [3]]).tolist()


def test_a_dict_and_any_number_of_arguments_take_what_the_configuration_has(tmp_path: Path) -> None:
    body = "return {'y': given['b'] - given['a']}"
    code = CODE.replace(
        "def forward(self, x):", "def forward(self, given: dict[str, torch.Tensor]):"
    ).replace("return self.layer(x)", body)
    text = "max_batch_size: 8 " + tensors("input", "a FP32 3", "b FP32 3") + tensors("output", "y FP32 3")
    assert run(written(tmp_path, code), text, a=X, b=3 * X)["y"].tolist() == (2 * X).tolist()
    code = CODE.replace("def forward(self, x):", "def forward(self, *given):").replace(
        "return self.layer(x)", "return [given[1] - given[0]]"
    )
    assert run(written(tmp_path, code), text, a=X, b=3 * X)["y"].tolist() == (2 * X).tolist()


def test_of_several_classes_a_parameter_names_one_and_the_first_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written(
        tmp_path,
        CODE + "\nclass Block(torch.nn.Module):\n    def forward(self, x):\n        return x[:, :2]\n",
    )
    (tmp_path / "model.safetensors").unlink()
    assert run(tmp_path, TEXT, x=X)["y"].tolist() == X[:, :2].tolist()
    assert "has the classes Block, Net; 'Block' is used as the model" in caplog.text
    safetensors.torch.save_file(zoo.Affine().state_dict(), tmp_path / "model.safetensors")
    named = TEXT + "parameters { key: 'MODULE_CLASS' value { string_value: '%s' } }"
    assert run(tmp_path, named % "Net", x=X)["y"].tolist() == WANTED
    with pytest.raises(LoadError, match=r"has no class 'Nett' that is an nn.Module \(has: Block, Net\)"):
        check(tmp_path, named % "Nett")


BAD_CODE = {
    "no class": ("import torch\n", "Cannot find a subclass of torch.nn.Module in"),
    "an import that fails": (
        "import torch\nimport no_such_thing\n",
        "ModuleNotFoundError: No module named 'no_such",
    ),
    "a syntax error": ("class Net(:\n", "importing .* fails: SyntaxError: invalid syntax"),
    "a script that ends the process": (CODE + "exit(3)\n", "importing .* fails: SystemExit: 3"),
    "a constructor that ends the process": (
        CODE.replace("super().__init__()", "exit(3)"),
        "class 'Net' of .* cannot be made without arguments: SystemExit: 3",
    ),
    "a constructor with arguments": (
        CODE.replace("def __init__(self)", "def __init__(self, size)"),
        r"class 'Net' of .* cannot be made without arguments: TypeError: .*'size'",
    ),
    "other layers than the weights": (
        CODE.replace("Linear(3, 2)", "Linear(3, 4)"),
        "does not fit its class: .*size mismatch for layer.weight",
    ),
}


@pytest.mark.parametrize("case", BAD_CODE)
def test_a_file_that_is_no_model_is_refused_with_the_reason(tmp_path: Path, case: str) -> None:
    code, words = BAD_CODE[case]
    with pytest.raises(LoadError, match="(?s)" + words):
        check(written(tmp_path, code), TEXT)


class _Sneaky:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('it ran')",)


def test_weights_that_hold_code_are_refused_and_do_not_run(tmp_path: Path) -> None:
    written(tmp_path, weights="")
    torch.save({"layer.weight": _Sneaky()}, tmp_path / "model.pt")
    with pytest.raises(
        LoadError, match="contains more than tensors, and reading it could run arbitrary code"
    ):
        check(tmp_path, TEXT)


BAD_WEIGHTS = {
    "model.safetensors": (b"no tensors at all", "cannot read the weights in"),
    "model.pt": (b"no zip", r"model\.pt' (is not an archive written by PyTorch|contains more than tensors)"),
}


@pytest.mark.parametrize("name", BAD_WEIGHTS)
def test_a_damaged_file_of_weights_is_named(tmp_path: Path, name: str) -> None:
    data, words = BAD_WEIGHTS[name]
    (written(tmp_path, weights="") / name).write_bytes(data)
    with pytest.raises(LoadError, match=words):
        check(tmp_path, TEXT)


def test_weights_that_are_no_state_dict_are_refused(tmp_path: Path) -> None:
    torch.save([1, 2], written(tmp_path, weights="") / "model.pt")
    with pytest.raises(LoadError, match="contains a list, not a state dict"):
        check(tmp_path, TEXT)


def test_two_files_of_weights_are_one_too_many(tmp_path: Path) -> None:
    written(tmp_path)
    written(tmp_path, weights="model.pt")
    with pytest.raises(LoadError, match=r"are both weights of 'model\.py': remove one"):
        check(tmp_path, TEXT)


def test_whatever_the_code_raises_is_an_error_of_the_request(tmp_path: Path) -> None:
    code = CODE.replace("return self.layer(x)", "return {}['key']")
    with pytest.raises(ExecutionError, match="PyTorch execute failure: KeyError: 'key'"):
        run(written(tmp_path, code), TEXT, x=X)
    code = CODE.replace("return self.layer(x)", "exit(3)")
    with pytest.raises(ExecutionError, match="PyTorch execute failure: SystemExit: 3"):
        run(written(tmp_path, code), TEXT, x=X)
    code = CODE.replace("return self.layer(x)", "return 5")
    with pytest.raises(ExecutionError, match="or a list, tuple or dict of these, received int"):
        run(written(tmp_path, code), TEXT, x=X)


def test_instances_do_not_share_what_their_class_remembers(tmp_path: Path) -> None:
    code = CODE.replace("self.layer = ", "self.count = 0\n        self.layer = ").replace(
        "return self.layer(x)", "self.count += 1\n        return x[:, :2] * 0 + self.count"
    )
    with executors(written(tmp_path, code), TEXT, instances="kind: KIND_CPU count: 2") as (first, second):
        assert first.execute({"x": X})["y"][0, 0] == 1
        assert first.execute({"x": X})["y"][0, 0] == 2
        assert second.execute({"x": X})["y"][0, 0] == 1


def test_a_model_that_places_itself_stays_where_it_is(tmp_path: Path) -> None:
    with executors(written(tmp_path), TEXT, instances="kind: KIND_MODEL count: 1") as [executor]:
        assert executor.execute({"x": X})["y"].tolist() == WANTED


def compiled(**options: object) -> str:
    said = json.dumps(options).replace('"', '\\"')
    return f'parameters {{ key: "TORCH_COMPILE_OPTIONAL_PARAMETERS" value {{ string_value: "{said}" }} }}'


@pytest.mark.slow  # torch.compile imports half of PyTorch
def test_a_compiled_model_computes_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "torch")
    assert run(written(tmp_path), TEXT + compiled(backend="eager"), x=X)["y"].tolist() == WANTED
    (tmp_path / "model.py").unlink()
    (tmp_path / "model.safetensors").unlink()
    zoo.save_exported(zoo.exported(zoo.Affine(), torch.ones(2, 3)), tmp_path / "model.pt2")
    assert run(tmp_path, compiled(backend="eager"), x=X)["OUTPUT__0"].tolist() == WANTED


def test_options_that_torch_compile_does_not_have_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"torch\.compile refuses them: .*'fast'"):
        check(written(tmp_path), TEXT + compiled(fast=True, backend="eager"))


def test_compiling_for_the_cpu_without_a_compiler_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(LoadError, match=r"needs a C\+\+ compiler to compile for the CPU: install g\+\+"):
        check(written(tmp_path), TEXT + compiled())
