"""Whether a request fits a model, and what it is told when it does not."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.serving.fakes import config_of, signature_of
from tpx.errors import Code, InvalidRequest
from tpx.protocol.tensors import Tensor, encode_bytes
from tpx.protocol.v2 import DecodedRequest, RequestedOutput
from tpx.serving.request import InferRequest, RequestHead, TensorSpec
from tpx.serving.signature import Signature

NOTE = (
    " NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended "
    "to each input shape. If you want to specify the full shape including the batch dim in your input dims "
    "config, try setting max_batch_size to zero. See the model configuration docs for more info on "
    "max_batch_size."
)


def signature(max_batch_size: int = 8, dims: tuple[int, ...] = (2,), inputs: int = 1) -> Signature:
    """Of a model with the inputs x (FP32), x1, ... and the outputs y (FP32) and words (BYTES)."""
    config = config_of(max_batch_size=max_batch_size, dims=dims)
    for index in range(1, inputs):
        config.input.add(name=f"x{index}", data_type=11, dims=dims)
    config.output.add(name="words", data_type=13, dims=[1])
    return signature_of(config)


def strings(max_batch_size: int = 8) -> Signature:
    """Of a model of strings."""
    config = config_of(max_batch_size=max_batch_size)
    config.input[0].data_type = 13
    return signature_of(config)


def tensor(shape: tuple[int, ...] = (1, 2), name: str = "x", datatype: str = "FP32") -> Tensor:
    """Zeros."""
    return Tensor(name, datatype, shape, bytes(4 * int(np.prod(shape))))


@dataclass
class FakeTarget:
    """Implements RequestTarget; receives no request."""

    max_batch_size: int
    name: str = "net"
    version: int = 1
    decoupled: bool = False
    retired: bool = False

    def submit(self, request: InferRequest) -> None:
        raise AssertionError

    def cancelled(self) -> None:
        raise AssertionError


def bind(
    sig: Signature, *tensors: Tensor, outputs: tuple[RequestedOutput, ...] = (), **fields: Any
) -> RequestHead:
    """The head of a request with these tensors."""
    request = DecodedRequest(inputs=list(tensors), outputs=list(outputs), **fields)
    return sig.bind(FakeTarget(sig.max_batch_size), request)


def refusal(sig: Signature, *tensors: Tensor, named: bool = True, **fields: Any) -> str:
    """The message that such a request gets; `named`: less the id that Triton puts before it."""
    with pytest.raises(InvalidRequest) as caught:
        bind(sig, *tensors, **fields)
    assert caught.value.code is Code.INVALID_ARGUMENT
    prefix = "[request id: <id_unknown>] "
    assert caught.value.message.startswith(prefix) is named
    return caught.value.message.removeprefix(prefix)


def test_a_request_that_fits_is_bound_with_its_batch_size_and_sizes() -> None:
    head = bind(signature(), tensor((3, 2)), request_id="7", parameters={"mine": 1})
    assert (head.batch_size, head.total_size, head.row_size) == (3, 24, 8)
    assert [(bound.spec.name, bound.shape, bound.size) for bound in head.inputs] == [("x", (3, 2), 24)]
    assert (head.request_id, head.parameters) == ("7", {"mine": 1})


def test_without_a_batch_dimension_the_shape_is_the_models() -> None:
    head = bind(signature(0, (3, 2)), tensor((3, 2)))
    assert (head.batch_size, head.inputs[0].shape) == (1, (3, 2))


def test_inputs_keep_the_order_of_the_request_and_only_equal_orders_are_stacked() -> None:
    sig = signature(inputs=2)
    one = bind(sig, tensor(), tensor(name="x1"))
    other = bind(sig, tensor(name="x1"), tensor())
    assert [bound.spec.name for bound in other.inputs] == ["x1", "x"]
    assert one.batch_key != other.batch_key
    assert one.batch_key == bind(sig, tensor((4, 2)), tensor((4, 2), "x1")).batch_key


def test_requests_are_stacked_only_if_all_but_the_rows_is_equal() -> None:
    sig = signature(dims=(-1,))
    assert bind(sig, tensor((1, 3))).batch_key != bind(sig, tensor((1, 4))).batch_key
    assert bind(sig, tensor((1, 3))).batch_key == bind(sig, tensor((2, 3))).batch_key


def test_the_metadata_shape_has_the_batch_dimension_in_front() -> None:
    sig, plain = signature(), signature(0)
    assert sig.wire_shape(sig.inputs["x"]) == [-1, 2]
    assert plain.wire_shape(plain.inputs["x"]) == [2]


def test_the_id_of_the_request_is_in_front_of_every_message() -> None:
    with pytest.raises(InvalidRequest, match=r"^\[request id: my id\] expected 1 inputs"):
        bind(signature(), request_id="my id")


# inputs


def test_missing_inputs_are_named() -> None:
    sig = signature(inputs=3)
    assert refusal(sig, tensor(name="x1")) == (
        "expected 3 inputs but got 1 inputs for model 'net'. Got input(s) ['x1'], but missing required "
        "input(s) ['x','x2']. Please provide all required input(s)."
    )
    assert refusal(sig) == (
        "expected 3 inputs but got 0 inputs for model 'net'. Got input(s) [], but missing required "
        "input(s) ['x','x1','x2']. Please provide all required input(s)."
    )


def test_too_many_inputs_are_refused() -> None:
    assert refusal(signature(), tensor(), tensor(name="z")) == (
        "expected 1 inputs but got 2 inputs for model 'net'. Got input(s) ['x','z'], but missing required "
        "input(s) []. Please provide all required input(s). Unknown input(s): ['z']."
    )


@pytest.mark.parametrize("name", ["z", "", "X", "x\0", "y", "x" * 100_000, "../x"])
def test_an_unknown_input_is_refused(name: str) -> None:
    message = f"unexpected inference input '{name}' for model 'net'"
    assert refusal(signature(), tensor(name=name), named=False) == message


def test_an_input_whose_name_is_close_to_a_known_one_is_told_so() -> None:
    sig = Signature("net", 0, [TensorSpec("images", "FP32", (2,))], [])
    assert refusal(sig, tensor((2,), name="image"), named=False) == (
        "unexpected inference input 'image' for model 'net' (did you mean 'images'?)"
    )


def test_an_input_given_twice_is_refused() -> None:
    assert refusal(signature(), tensor(), tensor()) == "input 'x' already exists in request"
    assert refusal(signature(inputs=2), tensor(), tensor()) == "input 'x' already exists in request"


def test_an_input_of_another_type_is_refused() -> None:
    assert refusal(signature(), tensor(datatype="INT32")) == (
        "inference input 'x' data-type is 'INT32', but model 'net' expects 'FP32'"
    )


def test_different_batch_sizes_in_one_request_are_refused() -> None:
    sig = signature(inputs=2)
    assert refusal(sig, tensor((2, 2)), tensor((3, 2), "x1")) == (
        "input 'x1' batch size does not match other inputs for 'net'"
    )


def test_a_batch_larger_than_the_models_is_refused() -> None:
    assert refusal(signature(), tensor((9, 2))) == "inference request batch-size must be <= 8 for 'net'"
    assert bind(signature(), tensor((8, 2))).batch_size == 8


def test_a_batch_of_nothing_is_refused() -> None:
    assert refusal(signature(), tensor((0, 2))) == "inference request batch-size must be >= 1 for 'net'"


def test_a_missing_batch_dimension_is_refused() -> None:
    assert refusal(signature(), tensor(())) == (
        "input 'x' has no shape but model requires batch dimension for 'net'"
    )
    assert refusal(signature(), tensor((2,))) == (
        "unexpected shape for input 'x' for model 'net'. Expected [-1,2], got [2]." + NOTE
    )


@pytest.mark.parametrize("shape", [(1, 3), (1, 2, 1), (1, 1, 2), (1, 0)])
def test_a_shape_that_is_not_the_models_is_refused(shape: tuple[int, ...]) -> None:
    got = ",".join(map(str, shape))
    assert refusal(signature(), tensor(shape)) == (
        f"unexpected shape for input 'x' for model 'net'. Expected [-1,2], got [{got}]." + NOTE
    )


def test_without_a_batch_dimension_there_is_no_note_about_it() -> None:
    assert refusal(signature(0), tensor((1, 2))) == (
        "unexpected shape for input 'x' for model 'net'. Expected [2], got [1,2]. "
    )


def test_two_thousand_dimensions_are_a_shape_that_does_not_fit() -> None:
    assert refusal(signature(), tensor((1,) * 2000)).startswith(
        "unexpected shape for input 'x' for model 'net'. Expected [-1,2], got [1,1,1,"
    )


@pytest.mark.parametrize("shape", [(1, -1), (-1, 2), (-2, -2), (1, -(2**62))])
def test_negative_dimensions_are_refused(shape: tuple[int, ...]) -> None:
    message = refusal(signature(dims=(-1,)), Tensor("x", "FP32", shape, bytes(8)))
    brackets = ",".join(map(str, shape))
    assert message == (
        f"invalid shape for input 'x': shape [{brackets}] contains one or more invalid dimensions"
    )


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2**62,), "byte size overflow for input 'x'"),
        ((2**62 + 2,), "byte size overflow for input 'x'"),
        ((2**32, 2**32), "causes total element count to exceed maximum size of 9223372036854775807"),
        ((2**4, 2**60 + 2), "causes total element count to exceed maximum size of 9223372036854775807"),
        ((2**100,), "causes total element count to exceed maximum size of 9223372036854775807"),
        ((2**40,), "input byte size mismatch for input 'x' for model 'net'. Expected 4398046511104, got 8"),
    ],
)
def test_sizes_that_overflow_are_refused(shape: tuple[int, ...], message: str) -> None:
    sig = signature(0, (-1,) * len(shape))
    assert message in refusal(sig, Tensor("x", "FP32", shape, bytes(8)))


@pytest.mark.parametrize("given", [0, 4, 7, 9, 800])
def test_data_that_is_not_as_long_as_its_shape_is_refused(given: int) -> None:
    assert refusal(signature(), Tensor("x", "FP32", (1, 2), bytes(given))) == (
        f"input byte size mismatch for input 'x' for model 'net'. Expected 8, got {given}"
    )


@pytest.mark.parametrize("max_batch_size", [0, 8])
def test_an_empty_dimension_fits_a_variable_one(max_batch_size: int) -> None:
    sig = signature(max_batch_size, (-1,))
    shape = (1, 0) if max_batch_size else (0,)
    assert bind(sig, tensor(shape)).total_size == 0


# strings


def test_strings_are_bound_with_no_size_of_their_own() -> None:
    head = bind(strings(), Tensor("x", "BYTES", (1, 2), encode_bytes([b"a", b""])))
    assert (head.inputs[0].size, head.total_size) == (-1, -1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            b"\x01\x00",
            "incomplete string length indicator for inference input 'x' for model 'net', expecting 4 bytes "
            "but only 2 bytes available. Please make sure the string length indicator is in one buffer.",
        ),
        (
            b"\xff\xff\xff\xff" + b"a" * 8,
            "incomplete string data for inference input 'x' for model 'net', expecting 4294967295 bytes "
            "but only 8 bytes available",
        ),
        (
            encode_bytes([b"a"]),
            "expected 2 string elements for inference input 'x' for model 'net', got 1",
        ),
        (
            encode_bytes([b"a", b"b", b"c"]),
            "unexpected number of string elements 3 for inference input 'x' for model 'net', expecting 2",
        ),
        (b"", "expected 2 string elements for inference input 'x' for model 'net', got 0"),
    ],
)
def test_strings_that_do_not_fit_their_shape_are_refused(data: bytes, message: str) -> None:
    assert refusal(strings(), Tensor("x", "BYTES", (1, 2), data)) == message


def test_a_huge_number_of_strings_is_refused_before_anything_is_made_for_them() -> None:
    config = config_of(max_batch_size=0, dims=(-1,))
    config.input[0].data_type = 13
    message = refusal(signature_of(config), Tensor("x", "BYTES", (2**59,), b""))
    assert message == f"expected {2**59} string elements for inference input 'x' for model 'net', got 0"


# outputs


def test_without_a_word_about_outputs_all_of_them_come() -> None:
    head = bind(signature(), tensor(), default_binary=True)
    assert [(out.spec.name, out.binary, out.classification) for out in head.outputs] == [
        ("y", True, 0),
        ("words", True, 0),
    ]


def test_outputs_come_in_the_order_asked_for() -> None:
    asked = (RequestedOutput(name="words", binary=False), RequestedOutput(name="y", classification=3))
    head = bind(signature(), tensor(), outputs=asked)
    assert [(out.spec.name, out.binary, out.classification) for out in head.outputs] == [
        ("words", False, 0),
        ("y", True, 3),
    ]


@pytest.mark.parametrize("name", ["z", "", "x", "y\0"])
def test_an_unknown_output_is_refused(name: str) -> None:
    message = refusal(signature(), tensor(), outputs=(RequestedOutput(name=name),), named=False)
    assert message == f"unexpected inference output '{name}' for model 'net'"


def test_an_output_asked_for_twice_is_refused() -> None:
    message = refusal(signature(), tensor(), outputs=(RequestedOutput(name="y"),) * 2)
    assert message == "output 'y' already exists in request"


def test_classes_of_strings_are_refused() -> None:
    asked = (RequestedOutput(name="words", classification=1),)
    assert refusal(signature(), tensor(), outputs=asked, named=False) == (
        "class result not available for output due to unsupported type 'BYTES'"
    )


@pytest.mark.parametrize("datatype", [1, 10, 14])
def test_classes_of_types_that_have_no_numbers_to_sort_are_refused(datatype: int) -> None:
    config = config_of()
    config.output[0].data_type = datatype
    message = refusal(
        signature_of(config), tensor(), outputs=(RequestedOutput(name="y", classification=1),), named=False
    )
    assert message.startswith("class result not available for output due to unsupported type")


# parameters


@pytest.mark.parametrize("key", ["triton_x", "triton_", "triton_final_response"])
def test_reserved_parameters_are_refused(key: str) -> None:
    assert refusal(signature(), tensor(), parameters={key: True}, named=False) == (
        "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
    )


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"priority": -1}, "invalid value for 'priority', expected value >= 0."),
        ({"timeout": -1}, "invalid value for 'timeout', expected value >= 0."),
        ({"sequence_id": -1}, "invalid value for 'sequence_id', expected value >= 0."),
        ({"timeout": 10**400}, "invalid value for 'timeout', expected value < 2^64."),
        ({"priority": "high"}, "invalid value type for 'priority' parameter"),
        ({"priority": True}, "invalid value type for 'priority' parameter"),
        ({"timeout": 1.5}, "invalid value type for 'timeout' parameter"),
        (
            {"sequence_id": 1.5},
            "invalid value type for 'sequence_id' parameter, expected int64_param or string_param.",
        ),
        (
            {"sequence_start": 1},
            "invalid value type for 'sequence_start' parameter, expected bool_param.",
        ),
        (
            {"sequence_end": "true"},
            "invalid value type for 'sequence_end' parameter, expected bool_param.",
        ),
    ],
)
def test_parameters_with_a_meaning_are_checked(parameters: dict[str, Any], message: str) -> None:
    assert refusal(signature(), tensor(), parameters=parameters, named=False).startswith(message)


def test_parameters_without_a_meaning_and_good_ones_are_kept() -> None:
    parameters: dict[str, Any] = {
        "priority": 1,
        "timeout": 0,
        "sequence_id": "a",
        "sequence_start": True,
        "mine": 1.5,
    }
    assert bind(signature(), tensor(), parameters=parameters).parameters == parameters


def test_plain_requests_share_a_head_only_where_everything_but_the_data_is_the_same() -> None:
    signature = Signature("m", 4, [TensorSpec("x", "FP32", (-1,))], [TensorSpec("y", "FP32", (-1,))])
    target = FakeTarget(8)

    def bind(shape: tuple[int, ...], size: int, **fields: Any) -> RequestHead:
        return signature.bind(
            target, DecodedRequest(inputs=[Tensor("x", "FP32", shape, bytes(size))], **fields)
        )

    first = bind((1, 2), 8)
    assert bind((1, 2), 8) is first
    for other in (
        bind((2, 1), 8),
        bind((1, 2), 8, request_id="1"),
        bind((1, 2), 8, parameters={"a": 1}),
        bind((1, 2), 8, default_binary=True),
        bind((1, 2), 8, outputs=[RequestedOutput(name="y")]),
    ):
        assert other is not first
    with pytest.raises(InvalidRequest, match="byte size mismatch"):
        bind((1, 2), 12)
