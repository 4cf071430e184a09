"""TorchScript archives: names, shapes of calls, datatypes, and what is refused."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.serving.backends.pytorch import zoo
from tests.serving.backends.pytorch.opening import QUIET_JIT, check, executors, opened, run, tensors
from tpx.errors import ConfigError, ExecutionError, InvalidRequest, LoadError
from tpx.serving.backends.pytorch.program import DTYPES

pytestmark = pytest.mark.filterwarnings(QUIET_JIT)

A = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
B = np.array([[10, 20, 30], [40, 50, 60]], np.float32)
BATCH = "max_batch_size: 8 "


@pytest.fixture(scope="module")
def add_sub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("add_sub")
    zoo.save_script(zoo.SumDifference(), directory / "model.pt")
    return directory


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("identity")
    zoo.save_script(zoo.Identity(), directory / "model.pt")
    return directory


OUTPUTS = tensors("output", "OUT__0 FP32 3", "OUT__1 FP32 3")


@pytest.mark.parametrize(
    ("first", "second"),
    [("INPUT0", "INPUT1"), ("left__0", "right__1"), ("one", "other")],
    ids=["arguments", "indices", "order"],
)
def test_inputs_follow_any_one_convention(add_sub: Path, first: str, second: str) -> None:
    text = BATCH + tensors("input", f"{first} FP32 3", f"{second} FP32 3") + OUTPUTS
    out = run(add_sub, text, **{first: A, second: B})
    assert out["OUT__0"].tolist() == (A + B).tolist()
    assert out["OUT__1"].tolist() == (A - B).tolist()


def test_indices_and_arguments_count_and_not_the_order_they_are_written_in(add_sub: Path) -> None:
    outputs = tensors("output", "MINUS__1 FP32 3", "PLUS__0 FP32 3")
    for first, second in (("INPUT0", "INPUT1"), ("x__0", "y__1")):
        text = BATCH + tensors("input", f"{second} FP32 3", f"{first} FP32 3") + outputs
        out = run(add_sub, text, **{first: A, second: B})
        assert out["MINUS__1"].tolist() == (A - B).tolist()
        assert out["PLUS__0"].tolist() == (A + B).tolist()


def test_names_of_two_conventions_are_taken_in_order_and_warned_of(
    add_sub: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = BATCH + tensors("input", "INPUT1 FP32 3", "other__0 FP32 3") + OUTPUTS
    out = run(add_sub, text, INPUT1=A, other__0=B)
    assert out["OUT__1"].tolist() == (A - B).tolist()
    assert "assigned in the order of the configuration" in caplog.text


def test_one_output_of_several_may_be_asked_for(add_sub: Path) -> None:
    text = BATCH + tensors("input", "INPUT0 FP32 3", "INPUT1 FP32 3") + tensors("output", "MINUS__1 FP32 3")
    assert run(add_sub, text, INPUT0=A, INPUT1=B)["MINUS__1"].tolist() == (A - B).tolist()


def test_a_dict_goes_in_and_comes_out_by_its_keys(tmp_path: Path) -> None:
    zoo.save_script(zoo.ByKey(), tmp_path / "model.pt")
    text = (
        BATCH
        + tensors("input", "b FP32 3", "a FP32 3")
        + tensors("output", "difference FP32 3", "sum FP32 3")
    )
    out = run(tmp_path, text, a=A, b=B)
    assert out["sum"].tolist() == (A + B).tolist()
    assert out["difference"].tolist() == (A - B).tolist()


@pytest.mark.parametrize("datatype", DTYPES)
def test_every_number_comes_back_bit_by_bit(identity: Path, datatype: str) -> None:
    text = BATCH + tensors("input", f"x {datatype} 3") + tensors("output", f"y {datatype} 3")
    dtype = np.uint16 if datatype == "BF16" else torch.empty(0, dtype=DTYPES[datatype]).numpy().dtype
    given = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
    if datatype == "BF16":
        given = np.array([[0x3F80, 0x7FC0, 0], [0xFF80, 0x0001, 1]], np.uint16)
    out = run(identity, text, x=given)["y"]
    assert out.dtype == given.dtype
    assert out.tobytes() == given.tobytes()


def test_strings_are_lists_of_text(tmp_path: Path) -> None:
    zoo.save_script(zoo.Shout(), tmp_path / "model.pt")
    text = tensors("input", "texts STRING -1") + tensors("output", "LOUD__0 STRING -1", "LENGTH__1 INT64 -1")
    out = run(tmp_path, text, texts=np.array([b"a", "grün".encode()], dtype=np.object_))
    assert out["LOUD__0"].tolist() == [b"a!", "grün!".encode()]
    assert out["LENGTH__1"].tolist() == [1, 5]  # bytes of UTF-8
    assert run(tmp_path, text, texts=np.array([], dtype=np.object_))["LOUD__0"].shape == (0,)
    with pytest.raises(InvalidRequest, match="input 'texts' is not UTF-8"):
        run(tmp_path, text, texts=np.array([b"\xff"], dtype=np.object_))


def test_strings_of_more_dimensions_are_refused_in_triton_words(tmp_path: Path) -> None:
    zoo.save_script(zoo.Shout(), tmp_path / "model.pt")
    text = BATCH + tensors("input", "texts STRING 1") + tensors("output", "LOUD__0 STRING 1")
    with pytest.raises(ConfigError, match="only supports 1 dimensional List of String as input for 'texts'"):
        check(tmp_path, text)


def test_a_failure_of_the_model_is_told_with_its_words_and_harms_no_later_run(tmp_path: Path) -> None:
    zoo.save_script(zoo.Fails(), tmp_path / "model.pt")
    text = tensors("input", "x FP32 -1 3") + tensors("output", "y FP32 -1 -1")
    with executors(tmp_path, text) as [executor]:
        with pytest.raises(
            ExecutionError, match=r"(?s)PyTorch execute failure: .*shape '\[-1, 5\]' is invalid"
        ):
            executor.execute({"x": np.full((2, 3), 5, np.float32)})
        assert executor.execute({"x": np.full((2, 3), 2, np.float32)})["y"].shape == (3, 2)


def test_an_output_of_another_type_is_an_error_that_names_both(identity: Path) -> None:
    text = BATCH + tensors("input", "x BF16 3") + tensors("output", "y FP32 3")
    with pytest.raises(
        ExecutionError, match=r"'y' has type torch\.bfloat16, the configuration says TYPE_FP32"
    ):
        run(identity, text, x=np.zeros((1, 3), np.uint16))


def test_an_output_that_there_is_not_is_told_in_triton_words(identity: Path) -> None:
    text = BATCH + tensors("input", "x FP32 3") + tensors("output", "y__0 FP32 3", "z__1 FP32 3")
    with pytest.raises(
        ExecutionError, match="z__1 in the model configuration refers to an output index which"
    ):
        run(identity, text, x=A)


REFUSED = {
    "a missing input": (
        tensors("input", "INPUT0 FP32 3"),
        "configuration expects 1 inputs, model provides 2",
    ),
    "an input too many": (
        tensors("input", "a__0 FP32 3", "b__1 FP32 3", "c__2 FP32 3"),
        "configuration expects 3 inputs, model provides 2",
    ),
    "no input": ("", "model configuration must contain at least one input, none were specified"),
    "an index beyond the arguments": (
        tensors("input", "a__0 FP32 3", "b__7 FP32 3"),
        "'b__7' refers to index 7, but the model has 2 inputs",
    ),
    "an index given twice": (
        tensors("input", "a__1 FP32 3", "b__1 FP32 3"),
        "'a__1' and 'b__1' both refer to index 1",
    ),
    "an optional input without a default": (
        "input [{name: 'INPUT0' data_type: TYPE_FP32 dims: [3]}, "
        "{name: 'INPUT1' data_type: TYPE_FP32 dims: [3] optional: true}]",
        "'INPUT1' is optional, but the model's forward has no default for it",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_configuration_that_does_not_fit_is_refused(add_sub: Path, case: str) -> None:
    text, words = REFUSED[case]
    with pytest.raises(ConfigError, match=words):
        check(add_sub, BATCH + text + OUTPUTS)


def test_controls_need_an_index_or_an_argument(add_sub: Path) -> None:
    text = (
        BATCH
        + tensors("input", "INPUT0 FP32 3")
        + OUTPUTS
        + "sequence_batching { control_input [{ name: 'READY' control [{ kind: CONTROL_SEQUENCE_READY "
        "fp32_false_true: [0, 1] }] }] }"
    )
    with pytest.raises(ConfigError, match="'READY' does not follow <name>__<index> naming convention"):
        check(add_sub, text)
    with executors(add_sub, text.replace("'READY'", "'READY__1'")) as [executor]:
        out = executor.execute({"INPUT0": A, "READY__1": np.ones((2, 1), np.float32)})
        assert out["OUT__0"].tolist() == (A + 1).tolist()


def test_states_need_indices_on_both_sides(add_sub: Path) -> None:
    names = "input_name: '{}' output_name: '{}'"
    state = "sequence_batching {{ state [{{ " + names + " data_type: TYPE_FP32 dims: [3] }}] }}"
    good = BATCH + tensors("input", "x__0 FP32 3") + tensors("output", "y__0 FP32 3")
    with executors(add_sub, good + state.format("s__1", "t__1")) as [executor]:
        out = executor.execute({"x__0": A, "s__1": B})
        assert out["t__1"].tolist() == (A - B).tolist()
    with pytest.raises(ConfigError, match="but state 's' does not follow"):
        check(add_sub, good + state.format("s", "t__1"))
    unnamed = BATCH + tensors("input", "x FP32 3") + tensors("output", "y__0 FP32 3")
    with pytest.raises(ConfigError, match="state but not all inputs and outputs follow"):
        check(add_sub, unnamed + state.format("s__1", "t__1"))


def test_a_configuration_without_tensors_is_not_completed_and_that_is_said(
    add_sub: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConfigError, match="must contain at least one input"):
        check(add_sub)
    assert "skipping model configuration auto-complete for 'net': not supported for pytorch" in caplog.text


def test_a_model_saved_in_training_mode_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch.jit.script(zoo.Identity().train()).save(str(tmp_path / "model.pt"))
    run(tmp_path, BATCH + tensors("input", "x FP32 3") + tensors("output", "y FP32 3"), x=A)
    assert "'net' was saved in training mode" in caplog.text


def test_an_argument_that_is_a_number_is_refused_in_triton_words(tmp_path: Path) -> None:
    class Times(torch.nn.Module):
        def forward(self, x: torch.Tensor, count: int) -> torch.Tensor:
            return x * count

    zoo.save_script(Times(), tmp_path / "model.pt")
    text = tensors("input", "x FP32 3", "count INT64 1") + tensors("output", "y FP32 3")
    with pytest.raises(LoadError, match="An input of type 'int' was detected in the model: 'count'"):
        check(tmp_path, text)


def test_an_optional_input_that_is_absent_is_the_arguments_default(tmp_path: Path) -> None:
    class Maybe(torch.nn.Module):
        def forward(self, x: torch.Tensor, more: torch.Tensor | None = None) -> torch.Tensor:
            return x if more is None else x + more

    zoo.save_script(Maybe(), tmp_path / "model.pt")
    inputs = tensors("input", "x FP32 3", "more FP32 3").replace(
        "dims: [3] }]", "dims: [3] optional: true }]"
    )
    text = BATCH + inputs + tensors("output", "y FP32 3")
    assert run(tmp_path, text, x=A)["y"].tolist() == A.tolist()
    assert run(tmp_path, text, x=A, more=B)["y"].tolist() == (A + B).tolist()


def test_what_ragged_batches_add_comes_after_the_inputs_or_by_its_name(tmp_path: Path) -> None:
    class Lengths(torch.nn.Module):
        def forward(self, values: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
            sums = torch.cumsum(values, 0)[ends.to(torch.int64) - 1]
            return torch.diff(torch.cat([torch.zeros(1), sums]))

    zoo.save_script(Lengths(), tmp_path / "model.pt")
    text = (
        BATCH + "input [{ name: '%s' data_type: TYPE_FP32 dims: [-1] allow_ragged_batch: true }] "
        "batch_input [{ kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: '%s' data_type: TYPE_FP32 "
        "source_input: '%s' }] " + tensors("output", "y FP32 1").replace("dims: [1]", "dims: [1] reshape {}")
    )
    given = np.arange(6, dtype=np.float32), np.array([2, 6], np.float32)
    for values, ends in (("values", "ends"), ("x__0", "y__1"), ("anything", "added")):
        out = run(tmp_path, text % (values, ends, values), **{values: given[0], ends: given[1]})
        assert out["y"].tolist() == [1, 14]


@pytest.mark.parametrize(
    ("module", "inline"),
    [
        (zoo.CountedByAnElement(), False),
        (zoo.CostlyIfLarge(), False),
        (zoo.Positives(), False),
        (zoo.RepeatedWhileSmall(), False),
        (zoo.SizedByAnElement(), False),
        (zoo.CountedByRows(), True),
        (zoo.Identity(), True),
    ],
    ids=lambda it: type(it).__name__,
)
def test_work_that_values_decide_is_not_done_on_the_event_loop(
    tmp_path: Path, module: torch.nn.Module, inline: bool
) -> None:
    zoo.save_script(module, tmp_path / "model.pt")
    with opened(tmp_path, tensors("input", "x FP32 -1") + tensors("output", "y FP32 -1")) as (model, _):
        assert model.inline is inline


def test_sizes_in_a_traced_module_are_not_values(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(zoo.CountedByRows(), torch.zeros(2, 3))
    traced.save(str(tmp_path / "model.pt"))
    with opened(tmp_path, tensors("input", "x FP32 -1") + tensors("output", "y FP32 -1")) as (model, _):
        assert model.inline
