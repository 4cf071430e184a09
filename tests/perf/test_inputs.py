"""What requests carry: shapes completed, tensors made."""

import numpy as np
import pytest

from tpx.errors import MeasurementError, UsageError
from tpx.perf.clients.model import ModelDescription, TensorSpec
from tpx.perf.inputs.base import InputSettings
from tpx.perf.inputs.shapes import resolve_shapes
from tpx.perf.inputs.synthetic import make_inputs
from tpx.perf.settings import Shape
from tpx.protocol.datatypes import BY_NAME


def model(*shape: int, datatype: str = "FP32", max_batch_size: int = 8) -> ModelDescription:
    spec = TensorSpec(name="x", datatype=datatype, shape=shape)
    return ModelDescription(name="net", inputs=(spec,), max_batch_size=max_batch_size)


def test_the_batch_comes_first_where_the_model_batches() -> None:
    assert resolve_shapes(model(3, 4), (), 2).by_input == {"x": (2, 3, 4)}
    assert resolve_shapes(model(3, 4, max_batch_size=0), (), 1).by_input == {"x": (3, 4)}


def test_a_given_shape_fills_dynamic_dimensions() -> None:
    resolved = resolve_shapes(model(-1, 4), [Shape("x", (7, 4))], 1)
    assert resolved.by_input == {"x": (1, 7, 4)}
    assert resolved.notices == ()


def test_dynamic_dimensions_become_one_and_the_user_is_told_how_to_choose() -> None:
    resolved = resolve_shapes(model(-1, 4), (), 1)
    assert resolved.by_input == {"x": (1, 1, 4)}
    assert "--shape x:1,4" in resolved.notices[0]


def test_a_given_shape_may_repeat_the_models() -> None:
    assert resolve_shapes(model(3), [Shape("x", (3,))], 1).by_input == {"x": (1, 3)}


@pytest.mark.parametrize("dims", [(4,), (3, 1), (1, 3)])
def test_a_given_shape_that_contradicts_the_model_is_refused(dims: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="does not fit the model"):
        resolve_shapes(model(3), [Shape("x", dims)], 1)


def test_a_shape_for_an_unknown_input_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"model 'net' has no such input .*has: x"):
        resolve_shapes(model(-1), [Shape("y", (3,))], 1)


def test_a_batch_that_the_model_does_not_take_is_refused() -> None:
    with pytest.raises(UsageError, match="does not support batching"):
        resolve_shapes(model(3, max_batch_size=0), (), 2)
    with pytest.raises(UsageError, match=r"-b 9 is more than model 'net' takes \(max_batch_size: 8\)"):
        resolve_shapes(model(3), (), 9)


def test_a_model_without_inputs_is_an_error_and_not_an_empty_request() -> None:
    with pytest.raises(MeasurementError, match="lists no inputs"):
        resolve_shapes(ModelDescription(name="net", inputs=()), (), 1)


@pytest.mark.parametrize("datatype", [name for name in BY_NAME if name != "BYTES"])
@pytest.mark.parametrize("kind", ["zero", "random"])
def test_every_datatype_gets_bytes_of_its_size(datatype: str, kind: str) -> None:
    settings = InputSettings(kind="zero" if kind == "zero" else "random")
    (tensor,) = make_inputs(model(5, datatype=datatype), {"x": (2, 5)}, settings)
    assert len(tensor.data) == 10 * BY_NAME[datatype].size
    assert (tensor.datatype, tensor.shape) == (datatype, (2, 5))
    assert any(bytes(tensor.data)) is (kind == "random")


@pytest.mark.parametrize("datatype", [name for name in BY_NAME if name not in ("BYTES", "BF16")])
def test_random_values_are_ones_a_model_can_compute_with(datatype: str) -> None:
    (tensor,) = make_inputs(model(1000, datatype=datatype), {"x": (1, 1000)}, InputSettings())
    values = tensor.numpy()
    assert values.min() >= 0
    assert values.max() <= (127 if values.dtype.kind in "iu" else 1)
    assert len(np.unique(values)) > 1


def test_bf16_is_the_upper_half_of_a_float_in_the_unit_interval() -> None:
    (tensor,) = make_inputs(model(100, datatype="BF16"), {"x": (1, 100)}, InputSettings())
    bits = tensor.numpy().astype(np.uint32) << 16
    values = bits.view(np.float32)
    assert values.min() >= 0
    assert 0.5 < values.max() < 1


def test_a_scalar_input_is_one_element() -> None:
    (tensor,) = make_inputs(model(max_batch_size=0), {"x": ()}, InputSettings())
    assert len(tensor.data) == 4


def test_strings_are_random_of_the_given_length_also_for_zero() -> None:
    for kind in ("zero", "random"):
        settings = InputSettings(kind="zero" if kind == "zero" else "random", string_length=9)
        (tensor,) = make_inputs(model(3, datatype="BYTES"), {"x": (1, 3)}, settings)
        strings = tensor.numpy().reshape(-1).tolist()
        assert [len(s) for s in strings] == [9, 9, 9]
        assert len(set(strings)) == 3


def test_a_given_string_fills_every_element() -> None:
    (tensor,) = make_inputs(model(2, datatype="BYTES"), {"x": (1, 2)}, InputSettings(string_data="hé"))
    assert tensor.numpy().reshape(-1).tolist() == ["hé".encode()] * 2


def test_the_seed_decides_the_values() -> None:
    def data(seed: int) -> bytes:
        (tensor,) = make_inputs(model(50), {"x": (1, 50)}, InputSettings(seed=seed))
        return bytes(tensor.data)

    assert data(1) == data(1)
    assert data(1) != data(2)
