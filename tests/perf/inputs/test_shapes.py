"""Shapes: the model's, completed by the user's."""

import pytest

from tests.perf.inputs.models import made, model, model_of
from tpx.errors import MeasurementError, UsageError
from tpx.perf.inputs.base import InputSpec
from tpx.perf.inputs.dataset import open_data
from tpx.perf.inputs.makers import resolve_shapes
from tpx.perf.settings import Shape


def test_a_given_shape_fills_dynamic_dimensions() -> None:
    assert resolve_shapes(model(-1, 4), [Shape("x", (7, 4))], 1) == {"x": (7, 4)}


def test_dynamic_dimensions_become_one_and_the_user_is_told_how_to_choose() -> None:
    data = open_data(model(-1, 4), InputSpec())
    assert data.streams[0][0].inputs[0].shape == (1, 4)
    assert "--shape x:1,4" in data.notices[0]


def test_nothing_is_said_of_shapes_that_are_known() -> None:
    assert open_data(model(-1, 4), InputSpec(shape=(Shape("x", (3, 4)),))).notices == ()


def test_a_given_shape_may_repeat_the_models() -> None:
    assert resolve_shapes(model(3), [Shape("x", (3,))], 1) == {"x": (3,)}


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
    with pytest.raises(
        UsageError, match=r"does not support batching; request larger tensors with --shape x:2,5,1$"
    ):
        resolve_shapes(model(-1, 5, -1, max_batch_size=0), (), 2)
    with pytest.raises(UsageError, match=r"-b 9 is more than model 'net' takes \(max_batch_size: 8\)"):
        resolve_shapes(model(3), (), 9)
    with pytest.raises(UsageError, match="when using a sequence model"):
        resolve_shapes(model(3, scheduler="sequence"), (), 2)


def test_a_model_without_inputs_is_an_error_and_not_an_empty_request() -> None:
    with pytest.raises(MeasurementError, match=r"lists no inputs, .* --declare x:FP32:1,4"):
        resolve_shapes(model_of(), (), 1)


def test_a_scalar_input_is_one_element() -> None:
    assert len(made(model(max_batch_size=0)).inputs[0].data) == 4
