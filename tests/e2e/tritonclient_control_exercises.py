"""Exercises of tritonclient's methods for the model repository, settings and shared memory."""

import base64
import json
import uuid
from typing import Any

import numpy as np
import pytest
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

from tests.e2e.tritonclient_exercises import EXERCISES, ROWS, Flavor, exercise

__all__ = ["EXERCISES"]

# the model repository


@exercise
async def get_model_repository_index(flavor: Flavor) -> None:
    index = await flavor.call("get_model_repository_index")
    entries = index["models"] if isinstance(index, dict) else index
    assert {"name": "add_sub", "version": "1", "state": "READY"} in entries


@exercise
async def load_model(flavor: Flavor) -> None:
    await flavor.call("load_model", "other")
    assert await flavor.call("is_model_ready", "other")
    config = json.dumps({"backend": "onnxruntime", "max_batch_size": 2})
    await flavor.call("load_model", "other", config=config)
    loaded = await flavor.call("get_model_config", "other")
    assert loaded.get("config", loaded)["max_batch_size"] == 2
    model = (flavor.repository / "other" / "1" / "model.onnx").read_bytes()
    await flavor.call("load_model", "other", config=config, files={"file:7/model.onnx": model})
    metadata = await flavor.call("get_model_metadata", "other")
    assert metadata["versions"] == ["7"]
    with pytest.raises(InferenceServerException, match="failed to load 'nobody'"):
        await flavor.call("load_model", "nobody")


@exercise
async def unload_model(flavor: Flavor) -> None:
    for dependents in (False, True):
        await flavor.call("load_model", "other")
        await flavor.call("unload_model", "other", unload_dependents=dependents)
        assert not await flavor.call("is_model_ready", "other")


# settings


@exercise
async def get_trace_settings(flavor: Flavor) -> None:
    for words in ({}, {"model_name": "add_sub"}):
        settings = _values(await flavor.call("get_trace_settings", **words))
        assert settings["trace_level"] == ["OFF"]


@exercise
async def update_trace_settings(flavor: Flavor) -> None:
    for words in ({}, {"model_name": "add_sub"}):
        changed = await flavor.call("update_trace_settings", **words, settings={"trace_rate": "7"})
        assert _values(changed)["trace_rate"] in ("7", ["7"])
        changed = await flavor.call("update_trace_settings", **words, settings={"trace_rate": None})
        assert _values(changed)["trace_rate"] in ("1000", ["1000"])


@exercise
async def get_log_settings(flavor: Flavor) -> None:
    assert _values(await flavor.call("get_log_settings"))["log_info"] is True


@exercise
async def update_log_settings(flavor: Flavor) -> None:
    for level in (1, 0):
        changed = await flavor.call("update_log_settings", {"log_verbose_level": level, "log_info": True})
        assert int(_values(changed)["log_verbose_level"]) == level


def _values(answer: Any) -> dict[str, Any]:
    """Settings by name: gRPC puts each into a message of its own."""
    if "settings" not in answer:
        return dict(answer)
    return {
        key: next(iter(value.values()), "") if isinstance(value, dict) else value
        for key, value in answer["settings"].items()
    }


# shared memory


@exercise
async def register_system_shared_memory(flavor: Flavor) -> None:
    await _with_region(flavor, "register_system_shared_memory")


@exercise
async def get_system_shared_memory_status(flavor: Flavor) -> None:
    await _with_region(flavor, "get_system_shared_memory_status")


@exercise
async def unregister_system_shared_memory(flavor: Flavor) -> None:
    await _with_region(flavor, "unregister_system_shared_memory")
    await flavor.call("unregister_system_shared_memory")
    assert not _regions(await flavor.call("get_system_shared_memory_status"))


async def _with_region(flavor: Flavor, _: str) -> None:
    """Register, look, infer through it both ways, unregister."""
    name = f"exercise_{uuid.uuid4().hex[:8]}"
    size = ROWS.nbytes
    region = shm.create_shared_memory_region(name, f"/{name}", 4 * size)
    try:
        shm.set_shared_memory_region(region, [ROWS, ROWS * 2])
        await flavor.call("register_system_shared_memory", name, f"/{name}", 4 * size, offset=0)
        assert name in _regions(await flavor.call("get_system_shared_memory_status", region_name=name))
        inputs = [flavor.module.InferInput(key, list(ROWS.shape), "FP32") for key in ("INPUT0", "INPUT1")]
        outputs = [flavor.output(key) for key in ("OUTPUT0", "OUTPUT1")]
        for number, tensor in enumerate([*inputs, *outputs]):
            tensor.set_shared_memory(name, size, offset=number * size)
        await flavor.call("infer", "add_sub", inputs, outputs=outputs)
        got = shm.get_contents_as_numpy(region, np.float32, list(ROWS.shape), offset=2 * size)
        assert np.array_equal(got, ROWS * 3)
        del got
        await flavor.call("unregister_system_shared_memory", name)
        assert name not in _regions(await flavor.call("get_system_shared_memory_status"))
    finally:
        shm.destroy_shared_memory_region(region)


def _regions(status: Any) -> list[str]:
    if isinstance(status, dict):
        return list(status.get("regions", {}))
    return [region["name"] for region in status]


@exercise
async def get_cuda_shared_memory_status(flavor: Flavor) -> None:
    assert not _regions(await flavor.call("get_cuda_shared_memory_status"))


@exercise
async def register_cuda_shared_memory(flavor: Flavor) -> None:
    """A handle that no GPU gave is refused, with and without one."""
    handle = base64.b64encode(bytes(64))
    with pytest.raises(
        InferenceServerException, match="failed to register CUDA shared memory region: 'nobody'"
    ):
        await flavor.call("register_cuda_shared_memory", "nobody", handle, 0, 64)


@exercise
async def unregister_cuda_shared_memory(flavor: Flavor) -> None:
    await flavor.call("unregister_cuda_shared_memory", "nobody")
    await flavor.call("unregister_cuda_shared_memory")
