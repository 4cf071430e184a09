"""Shapes: the model's, completed by the user's."""

from typing import Any

import pytest

from tests.perf.inputs.models import made, model, model_of
from tpx.errors import MeasurementError, UsageError
from tpx.perf.clients.model import model_description
from tpx.perf.inputs.base import InputSpec
from tpx.perf.inputs.dataset import open_data
from tpx.perf.inputs.makers import resolve_shapes
from tpx.perf.settings import Shape


def test_a_given_shape_fills_dynamic_dimensions() -> None:
    assert resolve_shapes(model(-1, 4), [Shape("x", (7, 4))], 1) == {"x": (7, 4)}


@pytest.mark.parametrize(
    ("dims", "flag"),
    [
        ((3, -1, -1), "--shape x:3,H,W"),
        ((-1, -1, 3), "--shape x:H,W,3"),
        ((-1, 4), "--shape x:N,4"),
        ((-1, -1), "--shape x:N1,N2"),
        ((-1, 2, -1), "--shape x:N1,2,N2"),
    ],
)
def test_sizes_that_nobody_names_are_asked_for_with_the_option_to_fill_in(
    dims: tuple[int, ...], flag: str
) -> None:
    with pytest.raises(UsageError, match=f"'x' .*Give {flag}, data with --input-data, or --assume-shapes"):
        open_data(model(*dims), InputSpec())


def test_a_guess_is_taken_where_it_is_asked_for_and_said_to_be_one() -> None:
    data = open_data(model(-1, 4), InputSpec(assume_shapes=True))
    assert data.streams[0][0].inputs[0].shape == (1, 4)
    assert data.guesses == ("the shape of input 'x' is a guess: [1,4] was sent; name it with --shape x:N,4",)


def test_nothing_is_said_of_shapes_that_are_known() -> None:
    data = open_data(model(-1, 4), InputSpec(shape=(Shape("x", (3, 4)),)))
    assert (data.notices, data.guesses) == ((), ())


METADATA = {"name": "net", "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3, -1, -1]}]}
WARM_UP = {"model_warmup": [{"name": "cat", "inputs": {"x": {"dims": ["3", "8", "9"], "zero_data": True}}}]}
PARAMETER = {"parameters": {"shapes": {"string_value": "x:3,6,7"}}}


@pytest.mark.parametrize(
    ("config", "sent", "source"),
    [
        (WARM_UP, (3, 8, 9), "warm-up request 'cat'"),
        (PARAMETER, (3, 6, 7), "parameter 'shapes'"),
        (WARM_UP | PARAMETER, (3, 6, 7), "parameter 'shapes'"),
    ],
)
def test_sizes_that_the_configuration_names_are_taken_from_there(
    config: dict[str, Any], sent: tuple[int, ...], source: str
) -> None:
    data = open_data(model_description(METADATA, {"max_batch_size": 8, **config}), InputSpec())
    assert data.streams[0][0].inputs[0].shape == sent
    assert data.guesses == ()
    assert data.notices[0].endswith(f"the shape of the model's {source}")


def test_a_shape_of_the_configuration_that_does_not_fit_is_no_answer() -> None:
    config = {"max_batch_size": 8, "parameters": {"shapes": {"string_value": "x:4,6,7"}}}
    with pytest.raises(UsageError, match="--shape x:3,H,W"):
        open_data(model_description(METADATA, config), InputSpec())
    config["parameters"] = {"shapes": {"string_value": "x=3"}}
    with pytest.raises(MeasurementError, match=r"its parameter 'shapes', x=3: .*colon"):
        model_description(METADATA, config)


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
