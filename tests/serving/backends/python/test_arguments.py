"""What pb_utils refuses to take, as Triton's own does: asked of a real one for each case."""

import ctypes
import gc
from typing import Any

import numpy as np
import pytest

from tpx.serving.backends.python.worker import triton_python_backend_utils

pb_utils: Any = triton_python_backend_utils  # also what its signatures forbid


def request(**arguments: Any) -> Any:
    return pb_utils.InferenceRequest(
        **{"model_name": "m", "inputs": [], "requested_output_names": [], **arguments}
    )


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *((name, None) for name in ("model_name", "inputs", "requested_output_names", "correlation_id")),
        *((name, None) for name in ("request_id", "model_version", "flags", "timeout", "preferred_memory")),
        ("model_name", 3),
        ("inputs", [1]),
        ("requested_output_names", [None]),
        ("requested_output_names", "ab"),
        ("correlation_id", -1),
        ("model_version", "1"),
        ("timeout", 1.5),
        ("timeout", -5),
        ("flags", 2**32),
        ("unknown", 1),
    ],
)
def test_an_argument_of_a_request_of_another_type_is_a_type_error(argument: str, value: object) -> None:
    with pytest.raises(TypeError, match=argument):
        request(**{argument: value})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"inputs": [None]}, "Input tensor for request with id '' and model name 'm' should not be empty."),
        ({"correlation_id": 1.5}, "Correlation ID must be integer or string"),
        ({"parameters": {1: "x"}}, "Expect parameters keys to have type str, found type <class 'int'>"),
        (
            {"parameters": {"a": None}},
            "Expect parameters values to have type bool/int/str, found type <class 'NoneType'>",
        ),
        ({"parameters": []}, "Expect parameters to have type dict, got <class 'list'>"),
    ],
)
def test_what_a_request_cannot_have_is_told_as_triton_does(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(pb_utils.TritonModelException) as caught:
        request(**arguments)
    assert str(caught.value) == words


def test_arguments_that_triton_converts_are_taken() -> None:
    made = request(model_name=b"m", flags=np.int64(99), requested_output_names=("b", "a", "a"))
    assert (made.model_name(), made.flags(), made.requested_output_names()) == ("m", 99, {"a", "b"})


@pytest.mark.parametrize("value", [None, [1], pb_utils.Tensor("x", np.zeros(1))])
def test_output_tensors_are_a_list_of_tensors(value: object) -> None:
    with pytest.raises(TypeError, match="output_tensors must be a"):
        pb_utils.InferenceResponse(value)
    with pytest.raises(
        pb_utils.TritonModelException, match="Output tensor for inference response should not"
    ):
        pb_utils.InferenceResponse([None])
    assert pb_utils.InferenceResponse(()).output_tensors() == []


@pytest.mark.parametrize("error", ["text", 3])
def test_an_error_of_a_response_is_a_triton_error(error: object) -> None:
    with pytest.raises(TypeError, match="error must be a TritonError"):
        pb_utils.InferenceResponse([], error)


@pytest.mark.parametrize("arguments", [(None,), (3,), ("x", None), ("x", 2)])
def test_a_triton_error_has_a_text_and_a_code(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match="TritonError"):
        pb_utils.TritonError(*arguments)
    assert repr(pb_utils.TritonError("x").code()) == "<ErrorCode.INTERNAL: 1>"


@pytest.mark.parametrize(
    ("name", "array"),
    [(None, np.zeros(1)), (3, np.zeros(1)), ("x", None), ("x", [1.0]), ("x", np.float32(3)), ("", None)],
)
def test_a_tensor_has_a_name_and_an_array(name: Any, array: Any) -> None:
    with pytest.raises(TypeError, match="Tensor"):
        pb_utils.Tensor(name, array)


def test_a_tensor_with_an_empty_name_or_no_datatype_is_refused() -> None:
    for make in (pb_utils.Tensor, pb_utils.Tensor.from_dlpack):
        with pytest.raises(pb_utils.TritonModelException, match="Tensor name cannot be an empty string"):
            make("", np.zeros(1))
        with pytest.raises(TypeError, match="name must be a str, got NoneType"):
            make(None, np.zeros(1))
    with pytest.raises(pb_utils.TritonModelException, match="NumPy dtype is not supported"):
        pb_utils.Tensor("x", np.zeros(1, complex))


@pytest.mark.parametrize("verb", ["log", "log_info", "log_warn", "log_error", "log_verbose"])
@pytest.mark.parametrize("message", [None, 3])
def test_a_message_of_the_log_is_a_text(verb: str, message: object) -> None:
    with pytest.raises(TypeError, match="message must be a str"):
        getattr(pb_utils.Logger, verb)(message)


@pytest.mark.parametrize("level", [None, 1, 7, "INFO"])
def test_a_level_of_the_log_is_one_of_its_own(level: object) -> None:
    with pytest.raises(TypeError, match="level must be a"):
        pb_utils.Logger.log("x", level)


@pytest.mark.parametrize(
    "call",
    [
        lambda: pb_utils.PreferredMemory(None),
        lambda: pb_utils.PreferredMemory(0),
        lambda: pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, None),
        lambda: pb_utils.MetricFamily(None, "d", pb_utils.MetricFamily.COUNTER),
        lambda: pb_utils.MetricFamily("n", None, pb_utils.MetricFamily.COUNTER),
        lambda: pb_utils.MetricFamily("n", "d", 0),
        lambda: pb_utils.load_model(None),
        lambda: pb_utils.load_model("m", None),
        lambda: pb_utils.load_model("m", "", {"file:1/model.py": "text"}),
        lambda: pb_utils.unload_model(None),
        lambda: pb_utils.unload_model("m", None),
        lambda: pb_utils.unload_model("m", "yes"),
        lambda: pb_utils.is_model_ready(None),
        lambda: pb_utils.is_model_ready("m", 1),
        lambda: request().set_flags(None),
        lambda: request().exec(decoupled=None),
        lambda: request().exec(decoupled="yes"),
    ],
)
def test_what_triton_refuses_by_its_type_is_a_type_error(call: Any) -> None:
    with pytest.raises(TypeError):
        call()


def test_files_of_a_load_are_a_dictionary() -> None:
    with pytest.raises(pb_utils.TritonModelException, match="files should be a dictionary of file paths"):
        pb_utils.load_model("m", files=3)


def test_bytes_tensors_are_serialized_as_bytes() -> None:
    assert pb_utils.serialize_byte_tensor(np.array([b"a", "b"], object)) == b"\1\0\0\0a\1\0\0\0b"
    assert pb_utils.serialize_byte_tensor(np.array([], object)) == ()
    assert pb_utils.serialize_byte_tensor(np.array([1.0])) is None


def test_a_type_that_no_datatype_has_is_none() -> None:
    numbers = [pb_utils.triton_to_numpy_type(number) for number in (0, 1, 13, 14, None)]
    assert numbers == [None, np.bool_, np.object_, None, None]
    assert pb_utils.numpy_to_triton_type(complex) is None
    assert pb_utils.triton_string_to_numpy("TYPE_BOOL") is bool


# DLPack


@pytest.mark.parametrize("source", [None, 3, "text", object()])
def test_what_does_not_speak_dlpack_is_refused(source: object) -> None:
    with pytest.raises(pb_utils.TritonModelException, match="Provided tensor is not supported"):
        pb_utils.Tensor.from_dlpack("x", source)


@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 3), (1, 4, 1)])
def test_a_bare_capsule_is_a_tensor_over_its_memory(kind: str, shape: tuple[int, ...]) -> None:
    array = np.ones(shape, kind)
    tensor = pb_utils.Tensor.from_dlpack("x", array.__dlpack__())
    array[...] = 0
    assert tensor.as_numpy().dtype == array.dtype
    assert tensor.shape() == list(shape)
    assert np.array_equal(tensor.as_numpy(), array)


@pytest.mark.slow
def test_a_capsule_frees_its_memory_with_the_tensor_and_is_consumed_once() -> None:
    class Owner(np.ndarray[Any, Any]):
        freed = False

        def __del__(self) -> None:
            Owner.freed = True

    capsule = np.zeros(3).view(Owner).__dlpack__()
    tensor = pb_utils.Tensor.from_dlpack("x", capsule)
    with pytest.raises(pb_utils.TritonModelException, match="was consumed before"):
        pb_utils.Tensor.from_dlpack("x", capsule)
    view = tensor.as_numpy()[1:]
    del tensor, capsule
    gc.collect()
    assert not Owner.freed
    assert view.tolist() == [0, 0]
    del view
    gc.collect()
    assert Owner.freed


def test_a_capsule_with_gaps_is_refused() -> None:
    for array in (np.zeros((3, 4), np.float32).T, np.zeros(8)[::2]):
        with pytest.raises(pb_utils.TritonModelException) as caught:
            pb_utils.Tensor.from_dlpack("x", array.__dlpack__())
        assert str(caught.value) == (
            "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are "
            "supported."
        )


def test_an_object_with_gaps_is_sent_without_them() -> None:
    tensor = pb_utils.Tensor.from_dlpack("x", np.arange(6, dtype="u1").reshape(2, 3).T)
    assert bytes(tensor._encode()) == bytes([0, 3, 1, 4, 2, 5])


def test_a_capsule_of_another_type_or_thing_is_refused() -> None:
    with pytest.raises(pb_utils.TritonModelException, match="code 5, 128 bits"):
        pb_utils.Tensor.from_dlpack("x", np.zeros(1, complex).__dlpack__())
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    with pytest.raises(pb_utils.TritonModelException, match="holds no DLPack tensor"):
        pb_utils.Tensor.from_dlpack("x", new(1, b"other", None))


@pytest.mark.slow  # importing torch takes seconds
def test_torch_gives_and_takes_bf16_in_bare_capsules() -> None:
    torch = pytest.importorskip("torch")
    for whole in (torch.tensor([1.5, -2], dtype=torch.bfloat16), torch.zeros(2, 0, dtype=torch.bfloat16)):
        tensor = pb_utils.Tensor.from_dlpack("x", torch.utils.dlpack.to_dlpack(whole))
        assert (tensor.triton_dtype(), tensor.shape()) == ("TYPE_BF16", list(whole.shape))
        assert bytes(tensor._encode()) == whole.view(torch.int16).numpy().tobytes()
        back = torch.utils.dlpack.from_dlpack(tensor.to_dlpack())
        assert torch.equal(back, whole)
        assert back.dtype is torch.bfloat16
