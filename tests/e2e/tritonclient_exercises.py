"""What every public method of tritonclient's clients is tried with: one exercise a name, the same for
blocking and asyncio, HTTP and gRPC.

`call` passes every optional argument that means the same everywhere (headers, query parameters, deadlines),
so that those are exercised with each method that has them.
"""

import inspect
import json
import queue
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

ROWS = np.arange(1, 33, dtype=np.float32).reshape(2, 16)
DEADLINE_S = 20


def everywhere() -> dict[str, Any]:
    """What methods of all kinds can be told. Made anew: the library writes into the headers it is given."""
    return {
        "headers": {"x-exercise": "1"},
        "query_params": {"exercise": "1 & 2"},
        "client_timeout": DEADLINE_S,
        "as_json": True,
    }


Exercise = Callable[["Flavor"], Awaitable[None]]
EXERCISES: dict[str, Exercise] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavor:
    """One of the four clients, connected, and the model repository that its server serves."""

    name: str
    module: ModuleType
    """Where its InferInput and InferRequestedOutput are."""
    client: Any
    repository: Path

    @property
    def over_http(self) -> bool:
        return self.name.startswith("http")

    async def call(self, method: str, *words: Any, **options: Any) -> Any:
        """Call a method, await it if need be; with what can be passed everywhere."""
        function = getattr(self.client, method)
        known = inspect.signature(function).parameters
        common = {key: value for key, value in everywhere().items() if key in known}
        answer = function(*words, **{**common, **options})
        return await answer if inspect.isawaitable(answer) else answer

    def input(self, name: str, array: Any, datatype: str = "FP32", **how: bool) -> Any:
        return self.module.InferInput(name, list(array.shape), datatype).set_data_from_numpy(array, **how)

    def pair(self) -> list[Any]:
        return [self.input("INPUT0", ROWS), self.input("INPUT1", ROWS * 2)]

    def output(self, name: str, **how: Any) -> Any:
        return self.module.InferRequestedOutput(name, **how)


def exercise(function: Exercise) -> Exercise:
    """Register under the name of the method."""
    EXERCISES[function.__name__] = function
    return function


def added(result: Any) -> bool:
    """Whether `add_sub` answered `pair`."""
    return bool(
        np.array_equal(result.as_numpy("OUTPUT0"), ROWS * 3)
        and (result.as_numpy("OUTPUT1") is None or np.array_equal(result.as_numpy("OUTPUT1"), -ROWS))
    )


def every_option(function: Any, **given: Any) -> dict[str, Any]:
    """Arguments for all that a method for inference can be told; one that is not known here is a failure."""
    options = {
        "model_version": "1",
        "request_id": "exercise",
        "sequence_id": 0,
        "sequence_start": False,
        "sequence_end": False,
        "priority": 1,
        "timeout": 10_000_000,
        "parameters": {"mine": 7, "word": "x", "yes": True},
        "request_compression_algorithm": "gzip",
        "response_compression_algorithm": "deflate",
        "compression_algorithm": "gzip",
        "enable_empty_final_response": True,
        **{key: value for key, value in everywhere().items() if key != "as_json"},
        **given,
    }
    known = set(inspect.signature(function).parameters) - {"model_name", "inputs"}
    assert known <= set(options), f"not exercised: {known - set(options)}"
    return {key: value for key, value in options.items() if key in known}


# health and metadata


@exercise
async def is_server_live(flavor: Flavor) -> None:
    assert await flavor.call("is_server_live") is True


@exercise
async def is_server_ready(flavor: Flavor) -> None:
    assert await flavor.call("is_server_ready") is True


@exercise
async def is_model_ready(flavor: Flavor) -> None:
    assert await flavor.call("is_model_ready", "add_sub") is True
    assert await flavor.call("is_model_ready", "add_sub", model_version="1") is True
    assert await flavor.call("is_model_ready", "add_sub", model_version="9") is False
    assert await flavor.call("is_model_ready", "nobody") is False


@exercise
async def get_server_metadata(flavor: Flavor) -> None:
    assert "binary_tensor_data" in (await flavor.call("get_server_metadata"))["extensions"]


@exercise
async def get_model_metadata(flavor: Flavor) -> None:
    metadata = await flavor.call("get_model_metadata", "add_sub", model_version="1")
    assert [item["name"] for item in metadata["inputs"]] == ["INPUT0", "INPUT1"]


@exercise
async def get_model_config(flavor: Flavor) -> None:
    config = await flavor.call("get_model_config", "add_sub", model_version="1")
    assert config.get("config", config)["backend"] == "onnxruntime"


@exercise
async def get_inference_statistics(flavor: Flavor) -> None:
    async def count() -> int:
        statistics = await flavor.call("get_inference_statistics", "add_sub", model_version="1")
        return int(statistics["model_stats"][0]["inference_stats"]["success"].get("count", 0))

    before = await count()
    await flavor.call("infer", "add_sub", flavor.pair())
    assert await count() == before + 1
    assert len((await flavor.call("get_inference_statistics"))["model_stats"]) > 1


# inference


@exercise
async def infer(flavor: Flavor) -> None:
    options = every_option(flavor.client.infer, outputs=[flavor.output("OUTPUT0")])
    result = await flavor.call("infer", "add_sub", flavor.pair(), **options)
    assert added(result)
    assert result.as_numpy("OUTPUT1") is None
    head = result.get_response()
    assert (head["id"] if isinstance(head, dict) else head.id) == "exercise"


@exercise
async def async_infer(flavor: Flavor) -> None:
    if flavor.over_http:
        request = flavor.client.async_infer(
            "add_sub", flavor.pair(), **every_option(flavor.client.async_infer, outputs=None)
        )
        assert added(request.get_result(block=True, timeout=DEADLINE_S))
        return
    answers: queue.Queue[Any] = queue.Queue()
    options = every_option(
        flavor.client.async_infer,
        outputs=None,
        callback=lambda result, error: answers.put((result, error)),
    )
    context = flavor.client.async_infer("add_sub", flavor.pair(), **options)
    result, error = answers.get(timeout=DEADLINE_S)
    assert error is None
    assert added(result)
    context.cancel()  # of a call that is over: nothing happens


@exercise
async def start_stream(flavor: Flavor) -> None:
    options = {"stream_timeout": DEADLINE_S, "compression_algorithm": "gzip", **everywhere()}
    await _over_stream(flavor, {key: options[key] for key in _known(flavor.client.start_stream, "callback")})


@exercise
async def async_stream_infer(flavor: Flavor) -> None:
    await _over_stream(flavor, {})


@exercise
async def stop_stream(flavor: Flavor) -> None:
    for cancel in (False, True):
        flavor.client.start_stream(lambda result, error: None)
        flavor.client.stop_stream(cancel_requests=cancel)
    await _over_stream(flavor, {})


def _known(function: Any, *less: str) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name not in less]


async def _over_stream(flavor: Flavor, options: Mapping[str, Any]) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    flavor.client.start_stream(lambda result, error: answers.put((result, error)), **options)
    try:
        how = every_option(flavor.client.async_stream_infer, outputs=None)
        for _ in range(3):
            flavor.client.async_stream_infer("add_sub", flavor.pair(), **how)
        for _ in range(3):
            result, error = answers.get(timeout=DEADLINE_S)
            assert error is None
            assert added(result)
            assert result.get_response().parameters["triton_final_response"].bool_param
        flavor.client.async_stream_infer("nobody", flavor.pair())
        _, error = answers.get(timeout=DEADLINE_S)
        assert "unknown model: 'nobody'" in error.message()
    finally:
        flavor.client.stop_stream()


@exercise
async def stream_infer(flavor: Flavor) -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        for number in range(3):
            yield {"model_name": "add_sub", "inputs": flavor.pair(), "request_id": str(number)}

    options = {
        "stream_timeout": DEADLINE_S,
        "headers": everywhere()["headers"],
        "compression_algorithm": "gzip",
    }
    assert set(_known(flavor.client.stream_infer, "inputs_iterator")) == set(options)
    answers = [answer async for answer in flavor.client.stream_infer(requests(), **options)]
    assert [error for _, error in answers] == [None] * 3
    assert [result.get_response().id for result, _ in answers] == ["0", "1", "2"]
    assert all(added(result) for result, _ in answers)


@exercise
async def generate_request_body(flavor: Flavor) -> None:
    body, size = flavor.client.generate_request_body(flavor.pair(), outputs=[flavor.output("OUTPUT0")])
    assert json.loads(body[:size])["inputs"][0]["name"] == "INPUT0"


@exercise
async def parse_response_body(flavor: Flavor) -> None:
    body = json.dumps(
        {"outputs": [{"name": "y", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}}]}
    ).encode()
    result = flavor.client.parse_response_body(
        body + np.float32(7).tobytes(), header_length=len(body), content_encoding=None
    )
    assert result.as_numpy("y") == [7]


# the client itself


@exercise
async def register_plugin(flavor: Flavor) -> None:
    seen = []

    def plugin(request: Any) -> None:
        request.headers["x-plugin"] = "1"
        seen.append(request)

    flavor.client.register_plugin(plugin)
    try:
        assert await flavor.call("is_server_live") is True
    finally:
        flavor.client.unregister_plugin()
    assert len(seen) == 1


@exercise
async def plugin(flavor: Flavor) -> None:
    def nothing(request: Any) -> None: ...

    assert flavor.client.plugin() is None
    flavor.client.register_plugin(nothing)
    assert flavor.client.plugin() is nothing
    flavor.client.unregister_plugin()


@exercise
async def unregister_plugin(flavor: Flavor) -> None:
    await plugin(flavor)
    assert flavor.client.plugin() is None
    assert await flavor.call("is_server_live") is True


@exercise
async def close(flavor: Flavor) -> None:
    """Closing twice harms nobody."""
    for _ in range(2):
        closed = flavor.client.close()
        if inspect.isawaitable(closed):
            await closed
