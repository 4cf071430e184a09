"""What the server's counters say of a measurement."""

import asyncio
from typing import Any

from tests.perf.conftest import FakeControl
from tpx.errors import WireError
from tpx.perf.clients.model import ModelDescription, ModelKey, Snapshot, model_counters
from tpx.perf.results import ServerBreakdown
from tpx.perf.server_statistics import ModelTree, ServerStatistics, model_tree

ONE = ModelKey("net", "1")
TWO = ModelKey("net", "2")
TEN = ModelKey("net", "10")


def between(
    tree: ModelTree, before: dict[ModelKey, dict[str, int]], after: dict[ModelKey, dict[str, int]]
) -> tuple[ServerBreakdown | None, list[str]]:
    async def scene() -> tuple[Snapshot | None, Snapshot | None]:
        control.counters = before
        first = await statistics.read()
        control.counters = after
        return first, await statistics.read()

    control = FakeControl()
    statistics = ServerStatistics(control, tree, available=True)
    first, last = asyncio.run(scene())
    return statistics.between(first, last), statistics.take_notices()


def test_every_counter_is_the_difference_of_two_readings() -> None:
    answer: dict[str, Any] = {"name": "net", "version": "1", "inference_count": 10, "execution_count": 5}
    names = ["success", "fail", "queue", "compute_input", "compute_infer", "compute_output"]
    names += ["cache_hit", "cache_miss"]
    answer["inference_stats"] = {n: {"count": i, "ns": i * 100} for i, n in enumerate(names, 1)}
    (start,) = model_counters({"model_stats": [answer]}).values()
    doubled = {k: v * 3 for k, v in start.items()}
    result, _ = between(ModelTree(ModelKey("net")), {ONE: dict(start)}, {ONE: doubled})
    assert result == ServerBreakdown(
        model="net",
        version="1",
        inference_count=20,
        execution_count=10,
        success_count=2,
        success_ns=200,
        fail_count=4,
        queue_count=6,
        queue_ns=600,
        compute_count=10,
        compute_input_ns=800,
        compute_infer_ns=1000,
        compute_output_ns=1200,
        cache_hit_count=14,
        cache_hit_ns=1400,
        cache_miss_count=16,
        cache_miss_ns=1600,
    )
    assert result.mean_batch == 2.0


def test_numbers_may_be_text_as_protobufs_json_has_them() -> None:
    (counters,) = model_counters(
        {"model_stats": [{"name": "net", "inference_count": "7", "inference_stats": {"queue": {"ns": "9"}}}]}
    ).values()
    assert (counters["inference_count"], counters["queue_ns"], counters["queue_count"]) == (7, 9, 0)


def test_the_version_that_was_used_is_found() -> None:
    result, notices = between(
        ModelTree(ModelKey("net")),
        {ONE: {"success_count": 5}, TWO: {"success_count": 5}},
        {ONE: {"success_count": 5}, TWO: {"success_count": 9}},
    )
    assert result is not None
    assert (result.version, result.success_count, notices) == ("2", 4, [])


def test_of_several_used_versions_the_highest_number_wins_with_a_notice() -> None:
    used = {"success_count": 1}
    result, notices = between(ModelTree(ModelKey("net")), {}, {TWO: used, TEN: used})
    assert result is not None
    assert result.version == "10"
    assert "several versions of model 'net'" in notices[0]


def test_a_given_version_is_taken_even_if_it_did_nothing() -> None:
    result, _ = between(ModelTree(ONE), {}, {ONE: {}, TWO: {"success_count": 4}})
    assert result is not None
    assert (result.version, result.success_count) == ("1", 0)


def test_a_model_loaded_again_in_between_counts_from_zero() -> None:
    result, _ = between(
        ModelTree(ModelKey("net")), {ONE: {"success_count": 100}}, {ONE: {"success_count": 3}}
    )
    assert result is not None
    assert result.success_count == 3


def test_an_ensemble_brings_its_models_and_theirs() -> None:
    tree = ModelTree(
        ModelKey("top"), False, (ModelTree(ModelKey("inner"), False, (ModelTree(ModelKey("net")),)),)
    )
    used = {"success_count": 1}
    keys = [ModelKey(name, "1") for name in ("top", "inner", "net", "other")]
    result, _ = between(tree, {}, dict.fromkeys(keys, used))
    assert result is not None
    assert [p.model for p in result.composing] == ["inner"]
    assert [p.model for p in result.composing[0].composing] == ["net"]


def test_a_composing_model_without_statistics_is_left_out() -> None:
    tree = ModelTree(ModelKey("top"), False, (ModelTree(ModelKey("gone")),))
    result, _ = between(tree, {}, {ModelKey("top", "1"): {"success_count": 1}})
    assert result is not None
    assert result.composing == ()


def test_a_server_without_the_extension_is_not_asked() -> None:
    control = FakeControl()
    control.fails = WireError("asked")
    statistics = ServerStatistics(control, ModelTree(ONE), available=False)
    assert asyncio.run(statistics.read()) is None
    assert statistics.take_notices() == []


def test_a_notice_is_given_once() -> None:
    control = FakeControl()
    control.fails = WireError("gone")
    statistics = ServerStatistics(control, ModelTree(ONE), available=True)
    asyncio.run(statistics.read())
    assert len(statistics.take_notices()) == 1
    asyncio.run(statistics.read())
    assert statistics.take_notices() == []
    assert statistics.between(None, {}) is None


def test_the_tree_of_an_ensemble_is_asked_from_the_server() -> None:
    class Ensembles(FakeControl):
        async def model(self, model: ModelKey) -> ModelDescription:
            steps = {"top": (ModelKey("inner"), ModelKey("a")), "inner": (ModelKey("b", "3"),)}
            return ModelDescription(name=model.name, inputs=(), steps=steps.get(model.name, ()))

    async def scene() -> ModelTree:
        control = Ensembles()
        key = ModelKey("top")
        return await model_tree(control, await control.model(key), key)

    inner = ModelTree(ModelKey("inner"), False, (ModelTree(ModelKey("b", "3")),))
    assert asyncio.run(scene()) == ModelTree(ModelKey("top"), False, (inner, ModelTree(ModelKey("a"))))
