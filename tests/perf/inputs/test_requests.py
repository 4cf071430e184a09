"""From steps to requests: batches round robin, shape tensors once, schedules, what is expected of each."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.perf.inputs.models import data_of, model, model_of, spec
from tpx.errors import UsageError
from tpx.perf.clients.base import PLAIN, RequestFields, Template
from tpx.perf.clients.model import ModelDescription
from tpx.perf.inputs.base import Tolerance
from tpx.perf.inputs.requests import FeedSettings, Requests, make_requests
from tpx.protocol.tensors import Tensor
from tpx.protocol.v2 import RequestedOutput

Row = dict[str, Any]


class Writer:
    """Implements Writer: a request is its tensors as lists."""

    async def prepare(self, tensors: Sequence[Tensor], fields: RequestFields = PLAIN) -> Row:
        return {tensor.name: tensor.numpy().tolist() for tensor in tensors}

    async def template(self, tensors: Sequence[Tensor], fields: RequestFields) -> Template:
        raise AssertionError("these requests belong to no sequence")


def requests(
    directory: Path, steps: Sequence[Row], description: ModelDescription, *, expected: Any = None, **more: Any
) -> Requests:
    path = directory / "data.json"
    document = {"data": list(steps)} | ({} if expected is None else {"validation_data": expected})
    path.write_text(json.dumps(document))
    data = data_of(description, path)
    return asyncio.run(make_requests(Writer(), description, data, FeedSettings(**more)))


def taken(made: Requests, count: int) -> list[tuple[int, Any]]:
    source = made.feed.source(0)
    return [(source.next(), source.step)[::-1] for _ in range(count)]


def test_steps_are_sent_one_after_the_other_and_all_slots_share_the_walk(tmp_path: Path) -> None:
    made = requests(tmp_path, [{"x": [i]} for i in range(3)], model(1))
    first, second = made.feed.source(0), made.feed.source(1)
    sent = [(first if i % 2 else second).next()["x"] for i in range(7)]
    assert sent == [[[i % 3]] for i in range(7)]


def test_a_batch_takes_steps_in_order_round_the_end(tmp_path: Path) -> None:
    made = requests(tmp_path, [{"x": [i]} for i in range(3)], model(1), batch_size=2)
    rows = [[[0], [1]], [[2], [0]], [[1], [2]]]
    assert taken(made, 4) == [(i % 3, {"x": rows[i % 3]}) for i in range(4)]


def test_a_model_without_batches_has_no_batch_dimension(tmp_path: Path) -> None:
    made = requests(tmp_path, [{"x": [1, 2]}], model(2, max_batch_size=0))
    assert taken(made, 1) == [(0, {"x": [1, 2]})]


def test_a_shape_tensor_is_sent_once_for_a_batch(tmp_path: Path) -> None:
    description = model_of(spec("x", 1), spec("s", 2, datatype="INT32", shape_tensor=True))
    same = [{"x": [i], "s": [7, 8]} for i in range(2)]
    assert taken(requests(tmp_path, same, description, batch_size=2), 1)[0][1] == {
        "x": [[0], [1]],
        "s": [7, 8],
    }
    with pytest.raises(UsageError, match="a shape tensor must be the same in all steps of a batch"):
        requests(tmp_path, [same[0], same[1] | {"s": [7, 9]}], description, batch_size=2)


def test_steps_of_a_batch_have_the_same_optional_inputs_and_shapes(tmp_path: Path) -> None:
    description = model_of(spec("x", -1), spec("z", 1, optional=True))
    with pytest.raises(UsageError, match=r"step 0: tensor 'z' is missing, .*step 1"):
        requests(tmp_path, [{"x": [1]}, {"x": [1], "z": [1]}], description, batch_size=2)
    with pytest.raises(UsageError, match=r"step 1, tensor 'x': the shape \[2\] differs from \[1\]"):
        requests(tmp_path, [{"x": [1]}, {"x": [1, 2]}], description, batch_size=2)
    assert len(taken(requests(tmp_path, [{"x": [1]}, {"x": [1, 2]}], description), 2)) == 2


def test_strings_of_a_batch_stand_one_after_the_other(tmp_path: Path) -> None:
    made = requests(
        tmp_path, [{"x": ["a", "bc"]}, {"x": ["", "d"]}], model(2, datatype="BYTES"), batch_size=2
    )
    assert taken(made, 1)[0][1] == {"x": [[b"a", b"bc"], [b"", b"d"]]}


def test_a_schedule_is_in_the_order_of_its_times(tmp_path: Path) -> None:
    steps = [{"x": [1], "timestamp": [20]}, {"x": [2], "timestamp": [10]}]
    made = requests(tmp_path, steps, model(1), scheduled=True)
    assert made.timestamps_ns == (10_000_000, 20_000_000)
    assert [request["x"] for _, request in taken(made, 2)] == [[[2]], [[1]]]
    with pytest.raises(UsageError, match="step 1: the step has no timestamp"):
        requests(tmp_path, [steps[0], {"x": [2]}], model(1), scheduled=True)


def test_nothing_is_compared_where_nothing_is_expected(tmp_path: Path) -> None:
    assert requests(tmp_path, [{"x": [1]}], model(1)).feed.check is None
    with pytest.raises(UsageError, match="--tolerance: the data has no validation_data"):
        requests(tmp_path, [{"x": [1]}], model(1), tolerance=Tolerance(1))


def test_an_expected_output_has_to_be_asked_for(tmp_path: Path) -> None:
    fields = RequestFields(outputs=(RequestedOutput(name="other"),))
    with pytest.raises(UsageError, match="validation_data has 'y', which --output leaves out"):
        requests(tmp_path, [{"x": [1]}], model(1), expected=[{"y": [1]}], fields=fields)


def test_requests_that_do_not_fit_into_memory_are_refused_by_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpx.perf.inputs.requests.ASKED_BYTES", 1)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=40))
    with pytest.raises(UsageError, match=r"step 2: the requests up to here take .* half of the memory"):
        requests(tmp_path, [{"x": [1, 2]}] * 4, model(2))
