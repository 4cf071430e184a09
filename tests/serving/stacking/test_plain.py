"""Stacking the inputs of requests, and giving each its own rows of the outputs."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.serving.fakes import config_of, ignore, signature_of
from tests.serving.stacking.stacks import Model
from tpx.errors import ExecutionError, InvalidRequest
from tpx.protocol.datatypes import BY_NAME
from tpx.protocol.tensors import Tensor, encode_bytes
from tpx.protocol.v2 import DecodedRequest, RequestedOutput
from tpx.serving.batch import Batch
from tpx.serving.request import InferRequest
from tpx.serving.signature import Signature
from tpx.serving.stacking.plain import PlainStacking

DATATYPES = [name for name in BY_NAME if name not in ("BYTES", "BF16")]


def signature(
    datatype: str = "FP32", dims: tuple[int, ...] = (-1,), max_batch_size: int = 8, **outputs: Any
) -> Signature:
    """Of a model x -> y; `reshape` reshapes both."""
    config = config_of(max_batch_size=max_batch_size, dims=dims)
    for item in (config.input[0], config.output[0]):
        item.data_type = BY_NAME[datatype].number
        if "reshape" in outputs:
            item.reshape.SetInParent()
            item.reshape.shape.extend(outputs["reshape"])
    return signature_of(config)


def bound(sig: Signature, tensor: Tensor, outputs: tuple[str, ...] = ()) -> InferRequest:
    """A request with this tensor, bound to the signature."""
    request = DecodedRequest(inputs=[tensor], outputs=[RequestedOutput(name=name) for name in outputs])
    return InferRequest(sig.bind(Model(), request), [tensor.data], ignore, None)


def of(sig: Signature, array: npt.NDArray[Any], datatype: str | None = None) -> InferRequest:
    """A request with this array as `x`."""
    return bound(sig, Tensor.from_numpy("x", array, datatype))


def gather(batch: Batch) -> dict[str, npt.NDArray[Any]]:
    """What a model would get."""
    return PlainStacking(batched=True).gather(batch)


def scatter(batch: Batch, outputs: dict[str, npt.NDArray[Any]], *, batched: bool = True) -> None:
    """Give the requests what a model gave."""
    PlainStacking(batched=batched).scatter(batch, outputs)


def answers(batch: Batch) -> list[list[Tensor]]:
    """The outputs of each request."""
    return [response.outputs for response in batch.responses]


def test_a_single_request_is_computed_on_the_bytes_that_came() -> None:
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    array = gather(Batch([of(signature(), data)]))["x"]
    assert np.shares_memory(array, data)
    assert array.shape == (2, 3)


def test_a_single_request_may_lie_at_any_offset_of_a_larger_message() -> None:
    message = b"\x01" + np.arange(4, dtype=np.float64).tobytes()
    tensor = Tensor("x", "FP64", (1, 4), memoryview(message)[1:])
    array = gather(Batch([bound(signature("FP64"), tensor)]))["x"]
    assert array.tolist() == [[0, 1, 2, 3]]
    assert np.shares_memory(array, np.frombuffer(message, np.uint8))


@pytest.mark.parametrize("datatype", DATATYPES)
def test_requests_are_stacked_in_order_with_every_datatype(datatype: str) -> None:
    sig = signature(datatype)
    rows = [np.array([[n, n + 1]]).astype(BY_NAME[datatype].numpy) for n in range(3)]
    array = gather(Batch([of(sig, row) for row in rows]))["x"]
    assert array.dtype == BY_NAME[datatype].numpy
    assert array.tolist() == np.concatenate(rows).tolist()


def test_bfloat16_is_stacked_as_its_bits() -> None:
    sig = signature("BF16")
    rows = [np.array([[0x3F80, n]], dtype=np.uint16) for n in range(2)]
    array = gather(Batch([of(sig, row, "BF16") for row in rows]))["x"]
    assert array.dtype == np.uint16
    assert array.tolist() == [[0x3F80, 0], [0x3F80, 1]]


def test_strings_of_different_lengths_are_stacked() -> None:
    sig = signature("BYTES")
    words = [[b"a", b""], [b"\xff\x00\xfe", b"long" * 100]]
    batch = Batch([bound(sig, Tensor("x", "BYTES", (1, 2), encode_bytes(row))) for row in words])
    assert gather(batch)["x"].tolist() == words


def test_many_strings_are_checked_where_they_are_computed_and_not_when_they_come() -> None:
    """Walking them takes seconds, which the event loop has not."""
    sig = signature("BYTES", (-1,))
    count = 1 << 18
    good = bound(sig, Tensor("x", "BYTES", (1, count), bytes(4 * count)))
    bad = bound(sig, Tensor("x", "BYTES", (1, count), bytes(4 * count - 1)))
    assert gather(Batch([good]))["x"].shape == (1, count)
    with pytest.raises(InvalidRequest) as caught:
        gather(Batch([bad]))
    assert caught.value.message.startswith(
        "[request id: <id_unknown>] incomplete string length indicator for inference input 'x' for model "
        "'net', expecting 4 bytes but only 3 bytes available"
    )


def test_more_strings_than_could_be_there_are_refused_before_memory_is_taken_for_them() -> None:
    request = bound(signature("BYTES", (-1,)), Tensor("x", "BYTES", (1, 2**45), bytes(1 << 17)))
    with pytest.raises(InvalidRequest, match=f"expected {2**45} string elements for inference input 'x'"):
        gather(Batch([request]))


def test_requests_with_several_rows_get_their_own_rows_back() -> None:
    sig = signature()
    batch = Batch(
        [of(sig, np.full((rows, 2), n, dtype=np.float32)) for n, rows in enumerate([1, 3, 2])],
    )
    assert batch.size == 6
    inputs = gather(batch)
    scatter(batch, {"y": inputs["x"] + 1})
    for n, (rows, [tensor]) in enumerate(zip([1, 3, 2], answers(batch), strict=True)):
        assert (tensor.name, tensor.datatype, tensor.shape) == ("y", "FP32", (rows, 2))
        assert tensor.numpy().tolist() == [[n + 1, n + 1]] * rows


@pytest.mark.parametrize("width", [4, 1 << 15])
def test_rows_of_small_and_of_large_outputs_are_the_same(width: int) -> None:
    sig = signature()
    batch = Batch([of(sig, np.full((2, width), n, dtype=np.float32)) for n in range(3)])
    scatter(batch, gather(batch) | {"y": gather(batch)["x"]})
    for n, [tensor] in enumerate(answers(batch)):
        assert tensor.numpy().tolist() == [[n] * width] * 2


def test_large_outputs_are_views_and_not_copies() -> None:
    sig = signature()
    batch = Batch([of(sig, np.zeros((1, 1 << 15), dtype=np.float32)) for _ in range(2)])
    out = np.ones((2, 1 << 15), dtype=np.float32)
    scatter(batch, {"y": out})
    for row, [tensor] in enumerate(answers(batch)):
        assert np.shares_memory(np.frombuffer(tensor.data, np.float32), out[row])


def test_outputs_that_are_not_contiguous_are_sent_in_row_major_order() -> None:
    sig = signature(dims=(-1, -1))
    batch = Batch([of(sig, np.zeros((1, 2, 3), dtype=np.float32))])
    out = np.arange(6, dtype=np.float32).reshape(1, 3, 2).transpose(0, 2, 1)
    scatter(batch, {"y": out})
    [[tensor]] = answers(batch)
    assert tensor.shape == (1, 2, 3)
    assert np.frombuffer(tensor.data, np.float32).tolist() == [0, 2, 4, 1, 3, 5]


def test_strings_go_to_the_request_they_belong_to() -> None:
    sig = signature("BYTES", (1,))
    words = [b"one", b"", b"three\x00"]
    batch = Batch([bound(sig, Tensor("x", "BYTES", (1, 1), encode_bytes([word]))) for word in words])
    scatter(batch, {"y": gather(batch)["x"]})
    assert [tensor.numpy().tolist() for [tensor] in answers(batch)] == [[[word]] for word in words]


def test_outputs_of_another_width_than_the_inputs_are_cut_by_rows() -> None:
    sig = signature()
    batch = Batch([of(sig, np.zeros((rows, 2), dtype=np.float32)) for rows in (1, 2)])
    scatter(batch, {"y": np.arange(9, dtype=np.float32).reshape(3, 3)})
    assert [tensor.numpy().tolist() for [tensor] in answers(batch)] == [
        [[0, 1, 2]],
        [[3, 4, 5], [6, 7, 8]],
    ]


def test_a_model_without_batch_dimension_gives_its_outputs_whole() -> None:
    sig = signature(max_batch_size=0, dims=(-1, -1))
    batch = Batch([of(sig, np.zeros((3, 2), dtype=np.float32))])
    assert gather(batch)["x"].shape == (3, 2)
    scatter(batch, {"y": np.arange(4, dtype=np.float32).reshape(4, 1)}, batched=False)
    [[tensor]] = answers(batch)
    assert tensor.shape == (4, 1)
    assert tensor.numpy().tolist() == [[0], [1], [2], [3]]


def test_an_empty_tensor_is_computed_and_answered() -> None:
    sig = signature(max_batch_size=0)
    batch = Batch([of(sig, np.zeros((0,), dtype=np.float32))])
    assert gather(batch)["x"].shape == (0,)
    scatter(batch, {"y": np.zeros((0,), dtype=np.float32)}, batched=False)
    [[tensor]] = answers(batch)
    assert (tensor.shape, bytes(tensor.data)) == ((0,), b"")


def test_empty_rows_are_stacked_and_given_back() -> None:
    sig = signature()
    batch = Batch([of(sig, np.zeros((1, 0), dtype=np.float32)) for _ in range(2)])
    inputs = gather(batch)["x"]
    assert inputs.shape == (2, 0)
    scatter(batch, {"y": inputs})
    assert [tensor.shape for [tensor] in answers(batch)] == [(1, 0), (1, 0)]


@pytest.mark.parametrize(
    ("dims", "reshape", "client", "model"),
    [
        ((1,), (), (2, 1), (2,)),
        ((2, 3), (6,), (2, 2, 3), (2, 6)),
        ((6,), (2, 3), (2, 6), (2, 2, 3)),
        ((-1, 1), (-1,), (2, 5, 1), (2, 5)),
        ((-1,), (-1, 1, 1), (2, 5), (2, 5, 1, 1)),
        ((-1, 1, -1), (-1, -1), (2, 5, 1, 3), (2, 5, 3)),
        ((-1, -1), (-1, 1, -1), (2, 5, 3), (2, 5, 1, 3)),
    ],
)
def test_reshape_is_seen_by_the_model_and_not_by_the_client(
    dims: tuple[int, ...], reshape: tuple[int, ...], client: tuple[int, ...], model: tuple[int, ...]
) -> None:
    sig = signature(dims=dims, reshape=reshape)
    batch = Batch([of(sig, np.zeros(client, dtype=np.float32))])
    inputs = gather(batch)["x"]
    assert inputs.shape == model
    scatter(batch, {"y": inputs})
    [[tensor]] = answers(batch)
    assert tensor.shape == client


def test_variable_dimensions_of_one_element_survive_a_reshape() -> None:
    sig = signature(dims=(-1, -1), reshape=(-1, 1, -1))
    batch = Batch([of(sig, np.zeros((1, 1, 7), dtype=np.float32))])
    inputs = gather(batch)["x"]
    assert inputs.shape == (1, 1, 1, 7)
    scatter(batch, {"y": inputs})
    [[tensor]] = answers(batch)
    assert tensor.shape == (1, 1, 7)


def test_each_request_gets_the_outputs_it_asked_for() -> None:
    config = config_of(dims=(-1,))
    config.output.add(name="z", data_type=11, dims=[-1])
    sig = signature_of(config)
    data = np.ones((1, 1), dtype=np.float32)
    batch = Batch([bound(sig, Tensor.from_numpy("x", data), wanted) for wanted in [("z",), (), ("z", "y")]])
    rows = np.arange(3, dtype=np.float32).reshape(3, 1)
    scatter(batch, {"y": rows, "z": rows * 10})
    assert [[(t.name, t.numpy().tolist()) for t in outputs] for outputs in answers(batch)] == [
        [("z", [[0]])],
        [("y", [[1]]), ("z", [[10]])],
        [("z", [[20]]), ("y", [[2]])],
    ]


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({}, "the model returned no output 'y'"),
        ({"y": np.zeros((2, 1), np.int32)}, "output 'y' has type int32, the configuration says FP32"),
        (
            {"y": np.zeros((3, 1), np.float32)},
            r"output 'y' has shape \[3, 1\], expected 2 rows, .*max_batch_size 0",
        ),
        ({"y": np.float32(1).reshape(())}, r"output 'y' has shape \[\], expected 2 rows"),
        ({"y": np.array([[b"a"], [b"b"]], object)}, "output 'y' has type object"),
    ],
)
def test_what_a_model_gives_is_checked(outputs: dict[str, npt.NDArray[Any]], message: str) -> None:
    sig = signature()
    batch = Batch([of(sig, np.zeros((1, 1), dtype=np.float32)) for _ in range(2)])
    with pytest.raises(ExecutionError, match=message):
        scatter(batch, outputs)


@pytest.mark.parametrize("shape", [(1, 7), (1, 2, 3), (1,)])
def test_an_output_that_cannot_be_reshaped_is_an_error_and_not_a_wrong_answer(shape: tuple[int, ...]) -> None:
    sig = signature(dims=(2, 3), reshape=(6,))
    batch = Batch([of(sig, np.zeros((1, 2, 3), dtype=np.float32))])
    with pytest.raises(ExecutionError, match=r"output 'y' has shape \[.*\], its reshape requires \[1, 6\]"):
        scatter(batch, {"y": np.zeros(shape, np.float32)})


@pytest.mark.parametrize("kind", [object, "S3", "U3"])
def test_strings_may_come_as_any_kind_of_string(kind: Any) -> None:
    sig = signature("BYTES", (1,))
    batch = Batch([bound(sig, Tensor("x", "BYTES", (1, 1), encode_bytes([b"abc"])))])
    scatter(batch, {"y": np.array([["abc"]], dtype=kind)})
    [[tensor]] = answers(batch)
    assert tensor.numpy().tolist() == [[b"abc"]]


def test_a_failed_batch_answers_every_request_with_the_error_and_has_all_its_times() -> None:
    sig = signature()
    batch = Batch([of(sig, np.zeros((1, 1), dtype=np.float32)) for _ in range(3)])
    error = ExecutionError("no")
    batch.fail(error)
    assert [response.error for response in batch.responses] == [error] * 3
    assert 0 < batch.started_ns <= batch.gathered_ns <= batch.computed_ns <= batch.ended_ns
