"""One case, asked of a server by the clients that Triton's users have, and of ONNX Runtime itself."""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import OrtValue
from tritonclient.utils import InferenceServerException

from tests.e2e.onnx_models.corpus import Case, Example

Arrays = list[npt.NDArray[Any]]


def served(client: Any, protocol: ModuleType, case: Case, examples: Sequence[Example]) -> list[Arrays] | str:
    """Load a model, ask it everything, unload it: the answers, or what went wrong and when."""
    try:
        client.load_model(case.name)
    except InferenceServerException as exc:
        return f"load: {exc.message()}"
    try:
        return [_ask(client, protocol, case.name, example.inputs) for example in examples]
    except InferenceServerException as exc:
        return f"infer: {exc.message()}"
    finally:
        client.unload_model(case.name)


def _ask(client: Any, protocol: ModuleType, model: str, values: Sequence[Any]) -> Arrays:
    metadata = client.get_model_metadata(model)
    inputs = []
    for (name, datatype), value in zip(_described(metadata, "inputs"), values, strict=True):
        array = _sent(np.asarray(value))
        inputs.append(protocol.InferInput(name, list(array.shape), datatype))
        inputs[-1].set_data_from_numpy(array)
    answer = client.infer(model, inputs)
    return [comparable(answer.as_numpy(name)) for name, _ in _described(metadata, "outputs")]


def _described(metadata: Any, kind: str) -> list[tuple[str, str]]:
    """Names and datatypes, in the order of the graph; HTTP answers with dictionaries, gRPC with messages."""
    if isinstance(metadata, dict):
        return [(item["name"], item["datatype"]) for item in metadata.get(kind, [])]
    return [(item.name, item.datatype) for item in getattr(metadata, kind)]


def computed(case: Case, examples: Sequence[Example]) -> list[Arrays] | str:
    """What ONNX Runtime gives by itself, without a server: the answers, or what went wrong and when."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        data = case.model.SerializeToString()
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as exc:  # noqa: BLE001 (whatever it says, the server must say so too)
        return f"load: {exc}"
    names = [item.name for item in session.get_inputs()]
    try:
        return [_compute(session, dict(zip(names, example.inputs, strict=True))) for example in examples]
    except Exception as exc:  # noqa: BLE001 (as above)
        return f"infer: {exc}"


def _compute(session: Any, values: dict[str, Any]) -> Arrays:
    arrays = {name: np.asarray(value) for name, value in values.items()}
    if any(array.dtype.name == "bfloat16" for array in arrays.values()):
        given = {
            name: onnxruntime.OrtValue(
                OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), 16), array
            )
            if array.dtype.name == "bfloat16"
            else onnxruntime.OrtValue.ortvalue_from_numpy(array)
            for name, array in arrays.items()
        }
        return [comparable(value.numpy()) for value in session.run_with_ort_values(None, given)]
    return [comparable(array) for array in session.run(None, arrays)]


def _sent(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """As the client library takes it: a scalar has one element, strings are bytes."""
    array = np.atleast_1d(array)
    if array.dtype.kind in "OU":
        words = [item.encode() if isinstance(item, str) else item for item in array.flat]
        return np.array(words, dtype=np.object_).reshape(array.shape)
    return array


def comparable(value: Any) -> npt.NDArray[Any]:
    """An answer or an expected output, as both can be compared."""
    array = _sent(np.asarray(value))
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def difference(answers: list[Arrays], wanted: Sequence[Sequence[Any]], case: Case) -> str:
    """Where answers are not as they should be, within the case's tolerance; empty if they are."""
    for number, (arrays, expected) in enumerate(zip(answers, wanted, strict=True)):
        for index, (array, value) in enumerate(zip(arrays, expected, strict=True)):
            fault = _fault(array, comparable(value), case)
            if fault:
                return f"answer: output {index} of example {number} {fault}"
    return ""


def _fault(got: npt.NDArray[Any], wanted: npt.NDArray[Any], case: Case) -> str:
    if got.shape != wanted.shape:
        return f"has shape {got.shape}, not {wanted.shape}"
    if wanted.dtype == np.object_:
        return "" if got.tolist() == wanted.tolist() else f"is {got.tolist()}, not {wanted.tolist()}"
    if got.dtype != wanted.dtype:
        return f"is of type {got.dtype}, not {wanted.dtype}"
    same = np.isclose(got, wanted, rtol=case.rtol, atol=case.atol, equal_nan=True)
    return "" if same.all() else f"differs in {(~same).sum()} of {same.size} values"
