"""The response cache: what it keeps, what it tells apart, and what clients and operators see of it."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serving.fakes import MS, config_of, ignore, signature_of
from tests.serving.frontends.metrics.pages import ask
from tests.serving.live import Live, floats, serving
from tests.serving.onnx_files import doubling, write_model
from tpx.errors import UsageError
from tpx.protocol.tensors import Tensor
from tpx.protocol.v2 import DecodedRequest, RequestedOutput
from tpx.serving.cache import CachedModel, ResponseCache, parse_cache_config
from tpx.serving.request import InferRequest, InferResponse
from tpx.serving.statistics import ModelStatistics


class Model:
    """What a request knows of its model."""

    version, max_batch_size, retired, decoupled = 1, 8, False, False

    def __init__(self, name: str) -> None:
        self.name = name

    def submit(self, request: InferRequest) -> None:
        raise AssertionError("requests are bound here, never submitted")

    def cancelled(self) -> None:
        pass


def answer(size: int) -> InferResponse:
    return InferResponse([Tensor("y", "UINT8", [size], bytes(size))])


def test_the_least_recently_used_answers_make_room() -> None:
    cache = ResponseCache(3 * (1000 + 512))
    for key in (b"a", b"b", b"c"):
        cache.put(key, answer(1000))
    assert cache.get(b"a") is not None
    cache.put(b"d", answer(1000))
    assert cache.get(b"b") is None
    assert [cache.get(key) is not None for key in (b"a", b"c", b"d")] == [True, True, True]
    assert (len(cache), cache.evictions, cache.used_bytes) == (3, 1, cache.size_bytes)


def test_an_answer_larger_than_the_cache_is_not_kept_and_nothing_goes_for_it() -> None:
    cache = ResponseCache(2000)
    cache.put(b"a", answer(1000))
    cache.put(b"b", answer(5000))
    assert cache.get(b"a") is not None
    assert cache.get(b"b") is None


def test_an_answer_is_a_copy_of_what_the_model_gave() -> None:
    cache = ResponseCache(2000)
    memory = bytearray(b"good")
    cache.put(b"a", InferResponse([Tensor("y", "UINT8", [4], memoryview(memory))]))
    memory[:] = b"evil"
    found = cache.get(b"a")
    assert found is not None
    assert bytes(found.outputs[0].data) == b"good"


def request(
    model: str = "net", rows: tuple[tuple[float, ...], ...] = ((1, 2),), **fields: Any
) -> InferRequest:
    decoded = DecodedRequest(inputs=[Tensor.from_numpy("x", floats(*rows))], **fields)
    head = signature_of(config_of(model, dims=(-1,))).bind(Model(model), decoded)
    return InferRequest(head, [tensor.data for tensor in decoded.inputs], ignore, None)


def look_up(cached: CachedModel, infer: InferRequest) -> InferResponse | None:
    return cached.answer(infer, cached.key_of(infer))


@pytest.mark.parametrize(
    "other",
    [
        request(rows=((1,), (2,))),
        request(rows=((1, 3),)),
        request(parameters={"temperature": 1}),
    ],
)
def test_requests_that_differ_in_anything_that_matters_have_different_answers(other: InferRequest) -> None:
    cached = CachedModel(ResponseCache(1 << 20), ModelStatistics())
    first = request()
    assert look_up(cached, first) is None
    cached.keep(first, answer(1), ignore)
    assert look_up(cached, request()) is not None
    assert look_up(cached, request(request_id="7")) is not None
    assert look_up(cached, request(outputs=[RequestedOutput(name="y")])) is not None
    assert look_up(cached, other) is None


def test_a_model_that_is_loaded_again_begins_with_nothing() -> None:
    cache = ResponseCache(1 << 20)
    old = CachedModel(cache, ModelStatistics())
    first = request()
    assert look_up(old, first) is None
    old.keep(first, answer(1), ignore)
    assert look_up(CachedModel(cache, ModelStatistics()), request()) is None
    assert look_up(old, request()) is not None


async def test_the_event_loop_neither_hashes_nor_copies_large_tensors() -> None:
    cached = CachedModel(ResponseCache(8 << 20), ModelStatistics())
    large, kept = request(rows=((1.0,) * 300_000,)), answer(2 << 20)
    assert cached.is_large(large)
    assert not cached.is_large(request())
    loop, free = asyncio.get_running_loop(), threading.Event()
    loop.set_default_executor(ThreadPoolExecutor(1))
    keys: asyncio.Queue[bytes] = asyncio.Queue()
    copied: asyncio.Queue[InferResponse] = asyncio.Queue()
    loop.run_in_executor(None, free.wait, 10)
    cached.hash_in_thread(large, lambda _, key: keys.put_nowait(key))
    await asyncio.sleep(0)
    assert keys.empty()
    free.set()
    assert cached.answer(large, await asyncio.wait_for(keys.get(), 10)) is None
    free.clear()
    loop.run_in_executor(None, free.wait, 10)
    cached.keep(large, kept, lambda _, response: copied.put_nowait(response))
    await asyncio.sleep(0)
    assert copied.empty()
    free.set()
    assert await asyncio.wait_for(copied.get(), 10) is kept
    found = look_up(cached, large)
    assert found is not None
    assert found.outputs[0].data == kept.outputs[0].data


@pytest.mark.parametrize(
    ("flags", "size", "message"),
    [
        (("local",), 0, "must be <cache>,<key>=<value>"),
        (("local,size=0",), 0, "didn't contain a valid 'size' field"),
        (("local,sizes=1",), 0, "didn't contain a valid 'size' field"),
        (("local,size=1", "local,color=red"), 0, "unknown setting 'color'"),
        (("local,size=1", "redis,host=x"), 0, "found multiple cache configurations"),
        (("redis,host=x",), 0, "there is no cache 'redis'"),
        (
            ("local,size=1",),
            5,
            "Incompatible flags --response-cache-byte-size and --cache-config both provided. ",
        ),
    ],
)
def test_cache_flags_that_cannot_be_are_refused(flags: tuple[str, ...], size: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_cache_config(flags, size)


def test_either_flag_makes_a_cache_and_none_makes_none() -> None:
    assert parse_cache_config(()) is None
    for cache in (parse_cache_config(["local,size=4096"]), parse_cache_config([], 4096)):
        assert cache is not None
        assert cache.size_bytes == 4096


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository = tmp_path_factory.mktemp("models")
    cached = "response_cache { enable: true } "
    write_model(repository, "cached", doubling(), cached)
    write_model(repository, "ordered", doubling(), cached + "dynamic_batching { preserve_ordering: true }")
    write_model(repository, "plain", doubling())
    with serving(repository, cache_config=("local,size=1048576",)) as server:
        yield server


def statistics(live: Live, model: str) -> Any:
    return live.get(f"/v2/models/{model}/stats").json["model_stats"][0]


@pytest.mark.parametrize("model", ["cached", "ordered"])
def test_a_repeated_request_is_answered_without_the_model(live: Live, model: str) -> None:
    answers = [live.infer_binary(model, {"x": floats([1, 2])}) for _ in range(3)]
    assert {answer.body for answer in answers} == {answers[0].body}
    assert live.infer_binary(model, {"x": floats([1, 3])}).status == 200
    counted = statistics(live, model)
    inference = counted["inference_stats"]
    assert (counted["inference_count"], counted["execution_count"]) == (2, 2)
    assert {name: inference[name]["count"] for name in inference} == {
        "success": 4,
        "fail": 0,
        "queue": 4,
        "compute_input": 2,
        "compute_infer": 2,
        "compute_output": 2,
        "cache_hit": 2,
        "cache_miss": 2,
    }
    assert inference["cache_hit"]["ns"] < 100 * MS


WIDE = """
platform: "ensemble" max_batch_size: 4 response_cache { enable: true }
input [{ name: "x" data_type: TYPE_FP32 dims: [ -1 ] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [ -1 ] }]
ensemble_scheduling {
  step [{ model_name: "cached" input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } }]
}
"""


@pytest.mark.parametrize("model", ["cached", "ordered", "composed"])
def test_a_large_request_is_answered_from_the_cache_too(tmp_path: Path, model: str) -> None:
    wide, cached = doubling("batch", "n"), "max_batch_size: 4 response_cache { enable: true } "
    write_model(tmp_path, "cached", wide, cached)
    write_model(tmp_path, "ordered", wide, cached + "dynamic_batching { preserve_ordering: true }")
    (tmp_path / "composed" / "1").mkdir(parents=True)
    (tmp_path / "composed" / "config.pbtxt").write_text(WIDE, encoding="utf-8")
    tensors = {"x": np.full((2, 200_000), 3, np.float32)}
    with serving(tmp_path, cache_config=("local,size=8000000",)) as server:
        answers = [server.infer_binary(model, tensors) for _ in range(2)]
        hits = statistics(server, model)["inference_stats"]["cache_hit"]["count"]
    assert [answer.status for answer in answers] == [200, 200]
    assert answers[0].tail == answers[1].tail == (2 * tensors["x"]).tobytes()
    assert hits == 1


def test_grpc_gets_what_http_has_asked(live: Live) -> None:
    assert live.infer_binary("cached", {"x": floats([7, 8])}).status == 200
    before = statistics(live, "cached")["execution_count"]
    with live.channel() as channel:
        response = channel.infer("cached", {"x": floats([7, 8])})
    assert response.raw_output_contents[0] == floats([14, 16]).tobytes()
    assert statistics(live, "cached")["execution_count"] == before


def test_models_that_do_not_ask_are_not_cached(live: Live) -> None:
    for _ in range(2):
        live.infer_binary("plain", {"x": floats([1, 2])})
    counted = statistics(live, "plain")
    assert counted["execution_count"] == 2
    assert counted["inference_stats"]["cache_hit"]["count"] == 0


def test_errors_are_not_kept(live: Live) -> None:
    for _ in range(2):
        assert live.infer_binary("cached", {"x": floats([1, 2, 3])}).status == 400


def test_the_metrics_page_has_the_cache(live: Live) -> None:
    live.infer_binary("cached", {"x": floats([5, 5])})
    text = ask(live.ports["Metrics Service"]).text
    assert float(text.partition("\nnv_cache_num_entries ")[2].split()[0]) >= 1
    assert 'nv_cache_num_hits_per_model{model="cached",version="1"}' in text
    assert 'nv_cache_num_hits_per_model{model="plain"' not in text


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("sequence_batching { }", "sequence batching scheduler"),
        ("model_transaction_policy { decoupled: true }", "'decoupled' transaction policy"),
    ],
)
def test_models_whose_answers_depend_on_more_than_the_request_are_not_cached(
    tmp_path: Path, text: str, what: str
) -> None:
    write_model(tmp_path, "net", doubling(), "response_cache { enable: true } " + text)
    with serving(tmp_path, exit_on_error=False) as server:
        [entry] = server.http("POST", "/v2/repository/index").json
    assert what in entry["reason"]
    assert "Please disable the response cache." in entry["reason"]
