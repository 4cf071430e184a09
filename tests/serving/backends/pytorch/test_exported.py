"""`torch.export` archives: what they tell completes and checks a configuration."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.export import Dim

from tests.serving.backends.pytorch import zoo
from tests.serving.backends.pytorch.opening import check, executors, opened, run, tensors
from tpx.errors import ConfigError, ExecutionError, LoadError

X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


def described(items: Any) -> list[tuple[str, int, list[int]]]:
    return [(item.name, item.data_type, list(item.dims)) for item in items]


@pytest.fixture(scope="module")
def affine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("affine")
    zoo.save_exported(zoo.exported(zoo.Affine(), torch.ones(2, 3)), directory / "model.pt2")
    return directory


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("scaled")
    program = zoo.exported(zoo.Scaled(), torch.ones(2, 3), scale=torch.ones(2, 3), most=16)
    zoo.save_exported(program, directory / "model.pt2")
    return directory


def test_an_archive_completes_the_configuration(affine: Path) -> None:
    full = check(affine)
    assert full.max_batch_size == 4
    assert full.HasField("dynamic_batching")
    assert full.default_model_filename == "model.pt2"
    assert described(full.input) == [("x", 11, [3])]
    assert described(full.output) == [("OUTPUT__0", 11, [2])]


def test_it_computes_what_the_module_does(affine: Path) -> None:
    wanted = zoo.Affine()(torch.from_numpy(X)).detach().numpy()
    assert np.allclose(run(affine, "", x=X)["OUTPUT__0"], wanted)


def test_the_largest_batch_is_that_of_the_archive(scaled: Path) -> None:
    assert check(scaled).max_batch_size == 16
    with pytest.raises(
        ConfigError, match="max_batch_size is 17, but the archive was exported for at most 16"
    ):
        check(scaled, "max_batch_size: 17")


def test_keywords_and_nested_results_have_names(scaled: Path) -> None:
    full = check(scaled)
    assert [name for name, _, _ in described(full.input)] == ["x", "scale"]
    assert described(full.output) == [
        ("scaled", 11, [3]),
        ("parts[0]", 11, [1]),
        ("parts[1]", 9, [1]),
    ]
    out = run(scaled, "", x=X, scale=2 * np.ones_like(X))
    assert out["scaled"].tolist() == (X * 2).tolist()
    assert out["parts[0]"].tolist() == [6, 15]
    assert out["parts[1]"].tolist() == [2, 2]


@pytest.mark.parametrize(
    ("names", "outputs"),
    [
        (("ARGS[0]", "KWARGS[scale]"), ("RESULT[parts][1]", "RESULT[scaled]")),
        (("INPUT__0", "INPUT__1"), ("ARGMAX__2", "SCALED__0")),
    ],
    ids=["labels", "indices"],
)
def test_inductor_names_and_indices_name_the_same_tensors(
    scaled: Path, names: tuple[str, str], outputs: tuple[str, str]
) -> None:
    text = "max_batch_size: 16 " + tensors("input", *(f"{name} FP32 3" for name in names))
    text += (
        f"output [{{ name: '{outputs[0]}' data_type: TYPE_INT64 dims: [1] reshape {{}} }}, "
        f"{{ name: '{outputs[1]}' data_type: TYPE_FP32 dims: [3] }}]"
    )
    out = run(scaled, text, **{names[0]: X, names[1]: np.ones_like(X)})
    assert out[outputs[0]].tolist() == [2, 2]
    assert out[outputs[1]].tolist() == X.tolist()


def test_a_dict_argument_has_its_keys_for_names(tmp_path: Path) -> None:
    program = zoo.exported(zoo.ByKey(), {"a": torch.ones(2, 3), "b": torch.ones(2, 3)})
    zoo.save_exported(program, tmp_path / "model.pt2")
    full = check(tmp_path)
    assert {name for name, _, _ in described(full.input)} == {"a", "b"}
    assert run(tmp_path, "", a=X, b=X)["difference"].tolist() == np.zeros_like(X).tolist()


def test_fixed_shapes_make_a_model_without_batches(tmp_path: Path) -> None:
    zoo.save_exported(torch.export.export(zoo.Affine().eval(), (torch.ones(2, 3),)), tmp_path / "model.pt2")
    full = check(tmp_path)
    assert full.max_batch_size == 0
    assert described(full.input) == [("x", 11, [2, 3])]
    with pytest.raises(ConfigError, match="model does not support batching while non-zero max_batch_size"):
        check(tmp_path, "max_batch_size: 2")


class Apart(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return a.sum() + b, a * 2


class Chosen(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(x)


@pytest.mark.parametrize(("module", "arguments"), [(Apart(), "ab"), (Chosen(), "x")])
def test_first_dimensions_that_vary_by_themselves_are_no_batch(
    tmp_path: Path, module: torch.nn.Module, arguments: str
) -> None:
    rows = {name: {0: Dim(f"rows_{name}")} for name in arguments}
    given = tuple(torch.ones(2 + place, 2) for place in range(len(arguments)))
    zoo.save_exported(torch.export.export(module, given, dynamic_shapes=rows), tmp_path / "model.pt2")
    full = check(tmp_path)
    assert full.max_batch_size == 0
    assert [list(item.dims) for item in (*full.input, *full.output)] == [[-1, 2]] * (2 * len(arguments))
    assert check(tmp_path, "max_batch_size: 4").max_batch_size == 4


def test_constants_and_nothing_are_no_tensors(tmp_path: Path) -> None:
    class Odd(torch.nn.Module):
        def forward(self, x: torch.Tensor, times: int, more: None = None) -> Any:
            return None, x * times, 5

    program = torch.export.export(Odd(), (torch.ones(2, 3), 3, None))
    zoo.save_exported(program, tmp_path / "model.pt2")
    full = check(tmp_path)
    assert [name for name, _, _ in described(full.input)] == ["x"]
    assert run(tmp_path, "", x=X)["OUTPUT__0"].tolist() == (X * 3).tolist()


def test_a_scalar_is_one_element_to_the_client(tmp_path: Path) -> None:
    zoo.save_exported(torch.export.export(zoo.Identity(), (torch.tensor(1.0),)), tmp_path / "model.pt2")
    assert described(check(tmp_path).input) == [("x", 11, [1])]
    assert run(tmp_path, "", x=np.array([7], np.float32))["OUTPUT__0"].tolist() == [7]


REFUSED = {
    "a wrong type": (
        tensors("input", "x INT32 3"),
        "expects datatype TYPE_INT32 for input 'x', model provides TYPE_FP32",
    ),
    "a wrong size": (tensors("input", "x FP32 4"), r"expects 2 dimensions \(shape \[-1,3\]\)"),
    "a missing dimension": (
        tensors("input", "x FP32 3 1"),
        "the model configuration specifies 3 dimensions",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_configuration_that_the_archive_contradicts_is_refused(affine: Path, case: str) -> None:
    text, words = REFUSED[case]
    with pytest.raises(ConfigError, match=words):
        check(affine, "max_batch_size: 4 " + text + tensors("output", "y FP32 2"))


def test_an_output_beyond_the_results_is_refused_when_it_is_loaded(affine: Path) -> None:
    text = "max_batch_size: 4 " + tensors("input", "x FP32 3") + tensors("output", "y__3 FP32 2")
    with pytest.raises(ConfigError, match="y__3 in the model configuration refers to an output index"):
        check(affine, text)


def test_rows_beyond_what_was_exported_are_an_error_of_the_run(scaled: Path) -> None:
    many = np.ones((17, 3), np.float32)
    with pytest.raises(ExecutionError, match="Guard failed"):
        run(scaled, "", x=many, scale=many)


def test_a_number_that_varies_is_refused(tmp_path: Path) -> None:
    class Times(torch.nn.Module):
        def forward(self, x: torch.Tensor, times: int) -> torch.Tensor:
            return x * times

    program = torch.export.export(
        Times(), (torch.ones(2), 3), dynamic_shapes=(None, torch.export.Dim.DYNAMIC)
    )
    zoo.save_exported(program, tmp_path / "model.pt2")
    with pytest.raises(ConfigError, match="its forward takes 'times', which is not a tensor"):
        check(tmp_path)


def test_a_type_that_the_protocol_has_not_is_refused(tmp_path: Path) -> None:
    example = torch.ones(2, dtype=torch.complex64)
    zoo.save_exported(torch.export.export(zoo.Identity(), (example,)), tmp_path / "model.pt2")
    with pytest.raises(LoadError, match=r"tensor 'x' has type torch\.complex64, which the v2 protocol"):
        check(tmp_path)


def test_a_program_of_another_pytorch_that_checks_nothing_itself_runs_too(
    affine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = torch.export.ExportedProgram
    unguarded = kind.module
    monkeypatch.setattr(kind, "module", lambda program: unguarded(program, check_guards=False))
    assert np.allclose(run(affine, "", x=X)["OUTPUT__0"], zoo.Affine()(torch.from_numpy(X)).detach().numpy())


def test_instances_have_their_own_weights_unless_they_share_them(
    affine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[Path] = []
    load = torch.export.load

    def counted(file: Any) -> Any:
        loads.append(affine)
        return load(file)

    monkeypatch.setattr(torch.export, "load", counted)
    shared = "parameters { key: 'ENABLE_WEIGHT_SHARING' value { string_value: 'true' } }"
    for text, count in (("", 3), (shared, 1)):
        with executors(affine, text, instances="kind: KIND_CPU count: 3") as instances:
            assert len(loads) == count
            answers = [each.execute({"x": X})["OUTPUT__0"].tolist() for each in instances]
            assert answers == [answers[0]] * 3
        loads.clear()


def test_archives_can_be_opened_at_the_same_time(affine: Path) -> None:
    together = threading.Barrier(6)

    def opening(_: int) -> int:
        together.wait(30)
        return int(check(affine).max_batch_size)

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(opening, range(6))) == [4] * 6


def test_an_archive_whose_result_is_as_large_as_a_value_says_runs_in_threads(
    affine: Path, tmp_path: Path
) -> None:
    program = torch.export.export(zoo.Zeros(), (torch.ones(2),))
    zoo.save_exported(program, tmp_path / "model.pt2")
    for directory, inline in ((tmp_path, False), (affine, True)):
        with opened(directory) as (model, _):
            assert model.inline is inline
