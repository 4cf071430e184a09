"""Completing a configuration from an ONNX file, and checking one against it, by Triton's rules."""

from typing import Any

import pytest

from tpx.errors import ConfigError, LoadError
from tpx.protocol import model_config
from tpx.serving.backends.model_tensors import check_signature
from tpx.serving.backends.onnxruntime.signature import OnnxTensor, complete_signature


def onnx(name: str, *shape: int, datatype: str = "FP32") -> OnnxTensor:
    """A tensor of a file; -1 varies."""
    return OnnxTensor(name=name, datatype=datatype, shape=shape)


def config(text: str = "") -> Any:
    """A ModelConfig as text."""
    return model_config.parse(f'name: "net" {text}', "test")


def completed(text: str, inputs: list[OnnxTensor], outputs: list[OnnxTensor], default: int = 4) -> Any:
    """The configuration after auto-completion."""
    out = config(text)
    complete_signature(out, inputs, outputs, default_max_batch_size=default)
    return out


def tensors(items: Any) -> list[tuple[Any, ...]]:
    """Name, type, dims and reshape of each input or output."""
    return [
        (i.name, i.data_type, list(i.dims), list(i.reshape.shape) if i.HasField("reshape") else None)
        for i in items
    ]


IO = ([onnx("x", -1, 16)], [onnx("y", -1, 1000)])
FIXED = ([onnx("x", 1, 16)], [onnx("y", 1, 1000)])
INPUT = "input [{ name: 'x' data_type: TYPE_FP32 dims: [ 16 ] }]"
OUTPUT = "output [{ name: 'y' data_type: TYPE_FP32 dims: [ 1000 ] }]"


def test_a_model_whose_first_dimensions_all_vary_gets_a_batch_dimension_and_batching() -> None:
    out = completed("", *IO)
    assert out.max_batch_size == 4
    assert out.WhichOneof("scheduling_choice") == "dynamic_batching"
    assert tensors(out.input) == [("x", 11, [16], None)]
    assert tensors(out.output) == [("y", 11, [1000], None)]


def test_a_dimension_of_0_varies_to_the_configuration_and_is_no_batch() -> None:
    io = [onnx("x", 0), onnx("n", -1, 0)], [onnx("y", -1)]
    out = completed("", *io)
    assert out.max_batch_size == 0
    assert tensors(out.input) == [("x", 11, [-1], None), ("n", 11, [-1, -1], None)]
    check_signature(out, *io)


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        FIXED,
        ([onnx("x", -1, 16)], [onnx("y", 1, 1000)]),
        ([onnx("x", 1, 16)], [onnx("y", -1, 1000)]),
        ([onnx("x", -1, 16), onnx("n")], [onnx("y", -1)]),
        ([onnx("x", 16, -1)], [onnx("y", 16, -1)]),
    ],
)
def test_a_model_with_one_first_dimension_that_does_not_vary_does_not_batch(
    inputs: list[OnnxTensor], outputs: list[OnnxTensor]
) -> None:
    out = completed("", inputs, outputs)
    assert out.max_batch_size == 0
    assert out.WhichOneof("scheduling_choice") is None
    assert [dims for _, _, dims, _ in tensors(out.input)] == [list(t.shape) or [1] for t in inputs]


def test_a_model_that_cannot_batch_may_not_be_configured_to() -> None:
    with pytest.raises(ConfigError, match="autofill failed for model 'net': model does not support batching"):
        completed("max_batch_size: 8", *FIXED)


@pytest.mark.parametrize(
    ("text", "default", "size", "batching"),
    [
        ("max_batch_size: 16", 4, 16, True),
        ("max_batch_size: 1", 4, 1, False),
        ("", 1, 1, False),
        ("", 0, 0, False),
        ("", 32, 32, True),
        ("max_batch_size: 0", 4, 4, True),
    ],
)
def test_the_batch_size_is_the_configured_one_or_the_default(
    text: str, default: int, size: int, batching: bool
) -> None:
    out = completed(text, *IO, default)
    assert (out.max_batch_size, out.HasField("dynamic_batching")) == (size, batching)


def test_with_a_default_of_zero_the_whole_shape_is_configured() -> None:
    assert tensors(completed("", *IO, 0).input) == [("x", 11, [-1, 16], None)]


def test_a_configured_scheduler_is_kept() -> None:
    out = completed("dynamic_batching { max_queue_delay_microseconds: 5 }", *IO)
    assert out.dynamic_batching.max_queue_delay_microseconds == 5


def test_a_complete_configuration_is_left_alone() -> None:
    text = f"{INPUT} {OUTPUT}"
    assert completed(text, *IO) == config(text)
    # even one that says it batches while the model cannot: the check finds that
    assert completed(f"max_batch_size: 8 {text}", *FIXED) == config(f"max_batch_size: 8 {text}")


@pytest.mark.parametrize(("given", "missing"), [(INPUT, "output"), (OUTPUT, "input")])
def test_only_the_missing_half_is_completed(given: str, missing: str) -> None:
    custom = given.replace("dims: [ 16 ]", "dims: [ -1 ]").replace("dims: [ 1000 ]", "dims: [ -1 ]")
    out = completed(custom, *IO)
    other = "input" if missing == "output" else "output"
    assert [dims for _, _, dims, _ in tensors(getattr(out, other))] == [[-1]]
    assert [dims for _, _, dims, _ in tensors(getattr(out, missing))] == [
        [16 if missing == "input" else 1000]
    ]
    assert out.max_batch_size == 4


def test_a_batched_tensor_of_one_element_is_reshaped() -> None:
    out = completed("", [onnx("x", -1)], [onnx("y", -1, -1)])
    assert tensors(out.input) == [("x", 11, [1], [])]
    assert tensors(out.output) == [("y", 11, [-1], None)]


def test_a_scalar_of_a_model_without_batching_has_one_element() -> None:
    out = completed("", [onnx("x")], [onnx("y", 3)])
    assert tensors(out.input) == [("x", 11, [1], None)]


@pytest.mark.parametrize(
    ("kind", "number"),
    [("tensor(bool)", 1), ("tensor(string)", 13), ("tensor(bfloat16)", 14), ("tensor(uint64)", 5)],
)
def test_types_are_those_of_the_protocol(kind: str, number: int) -> None:
    class Node:
        name = "x"
        type = kind
        shape = ("batch", None, 3, -1)

    tensor = OnnxTensor.of(Node())
    assert tensor.shape == (-1, -1, 3, -1)
    assert completed("", [tensor], [onnx("y", -1)]).input[0].data_type == number


@pytest.mark.parametrize("kind", ["seq(tensor(float))", "map(int64,tensor(float))", "tensor(complex64)"])
def test_what_the_protocol_cannot_carry_is_refused(kind: str) -> None:
    class Node:
        name = "probabilities"
        type = kind
        shape = ()

    with pytest.raises(LoadError, match="'probabilities' has type"):
        OnnxTensor.of(Node())


# checking


def refusal(text: str, inputs: list[OnnxTensor], outputs: list[OnnxTensor]) -> str:
    """Why a configuration does not go with a file."""
    with pytest.raises(ConfigError) as caught:
        check_signature(config(text), inputs, outputs)
    return caught.value.message


def test_a_configuration_that_goes_with_the_file_passes() -> None:
    check_signature(config(f"max_batch_size: 8 {INPUT} {OUTPUT}"), *IO)
    check_signature(config(f"{INPUT} {OUTPUT}".replace("[ 1", "[ -1, 1")), *IO)
    check_signature(config(f"{INPUT} {OUTPUT}".replace("[ 1", "[ 1, 1")), *FIXED)


def test_variable_dimensions_go_with_any() -> None:
    check_signature(config(f"max_batch_size: 8 {INPUT} {OUTPUT}".replace("[ 16 ]", "[ -1 ]")), *IO)
    check_signature(config(f"max_batch_size: 8 {INPUT} {OUTPUT}"), [onnx("x", -1, -1)], [onnx("y", -1, -1)])


def test_not_every_output_must_be_configured_but_every_input() -> None:
    inputs, outputs = IO
    check_signature(config(f"max_batch_size: 8 {INPUT} {OUTPUT}"), inputs, [*outputs, onnx("z", -1)])
    text = f"max_batch_size: 8 {INPUT} {OUTPUT}"
    assert refusal(text, [*inputs, onnx("z", -1)], outputs) == (
        "unable to load model 'net', configuration expects 1 inputs, model provides 2"
    )


def test_unknown_tensors_are_named_with_those_there_are() -> None:
    text = f"max_batch_size: 8 {INPUT} {OUTPUT}"
    message = refusal(text.replace("'x'", "'X'"), [onnx("x", -1, 16)], IO[1])
    assert message == "unexpected inference input 'X', allowed inputs are: x"
    message = refusal(text.replace("'y'", "'Y'"), IO[0], [*IO[1], onnx("z", -1)])
    assert message == "unexpected inference output 'Y', allowed outputs are: y, z"


def test_types_must_agree() -> None:
    text = f"max_batch_size: 8 {INPUT} {OUTPUT}".replace("TYPE_FP32", "TYPE_INT32", 1)
    assert refusal(text, *IO) == (
        "unable to load model 'net', configuration expects datatype TYPE_INT32 for input 'x', "
        "model provides TYPE_FP32"
    )


def test_shapes_must_agree() -> None:
    text = f"max_batch_size: 8 {INPUT} {OUTPUT}".replace("[ 16 ]", "[ 16, 1 ]")
    assert refusal(text, *IO) == (
        "model 'net', tensor 'x': the model expects 2 dimensions (shape [-1,16]) but the model configuration "
        "specifies 3 dimensions (an initial batch dimension because max_batch_size > 0 followed by the "
        "explicit tensor shape, making complete shape [-1,16,1])"
    )
    text = f"{INPUT} {OUTPUT}".replace("[ 16 ]", "[ 1, 17 ]").replace("[ 1000 ]", "[ 1, 1000 ]")
    assert refusal(text, *FIXED) == (
        "model 'net', tensor 'x': the model expects 2 dimensions (shape [1,16]) but the model configuration "
        "specifies 2 dimensions (shape [1,17])"
    )


@pytest.mark.parametrize("shape", [(1, 16), (8, 16)])
def test_a_file_with_a_fixed_first_dimension_cannot_serve_batches(shape: tuple[int, ...]) -> None:
    message = refusal(f"max_batch_size: 8 {INPUT} {OUTPUT}", [onnx("x", *shape)], IO[1])
    assert message.startswith("model 'net', tensor 'x': for the model to support batching")
    assert f"[{shape[0]},16]" in message


def test_reshapes_are_what_the_file_must_agree_with() -> None:
    text = "max_batch_size: 8 input [{ name: 'x' data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } }]"
    check_signature(config(f"{text} {OUTPUT}"), [onnx("x", -1)], IO[1])
    assert "expects 2 dimensions" in refusal(f"{text} {OUTPUT}", *IO)


def test_a_scalar_is_configured_as_one_element() -> None:
    text = "input [{ name: 'x' data_type: TYPE_FP32 dims: [ 1 ] }] output [{ name: 'y' data_type: TYPE_FP32 "
    check_signature(config(text + "dims: [ 1 ] }]"), [onnx("x")], [onnx("y")])
    assert "expects 0 dimensions" in refusal(text + "dims: [ 2 ] }]", [onnx("x")], [onnx("y")])
