"""Model control over real files on a running event loop, with a client that asks its models."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.serving.onnx_files import graph, node, save, value
from tests.serving.repository.places import opened
from tests.waiting import until
from tpx.errors import InvalidRequest
from tpx.protocol.tensors import Tensor
from tpx.protocol.v2 import DecodedRequest, LoadParameter
from tpx.serving.heap import tree_resident_bytes
from tpx.serving.instances.completions import Completions
from tpx.serving.repository.coordinator import Coordinator
from tpx.serving.repository.discovery import override_of
from tpx.serving.repository.layout import Repository
from tpx.serving.repository.loading import Loader, LoadSettings
from tpx.serving.repository.options import ModelSpec
from tpx.serving.repository.table import ModelRepository
from tpx.serving.request import InferRequest, InferResponse
from tpx.serving.scheduling.limiter import NoLimiter
from tpx.serving.served import Served


def times(factor: float) -> Any:
    """y = factor x."""
    constant = helper.make_node(
        "Constant", [], ["factor"], value=helper.make_tensor("v", 1, [], [float(factor)])
    )
    return graph(
        [constant, node("Mul", ["x", "factor"], ["y"])],
        [value("x", "FP32", "batch", 2)],
        [value("y", "FP32", "batch", 2)],
    )


def write(repository: Path, factor: float, version: int = 1, name: str = "net") -> Path:
    """Put a model that multiplies into a repository, as careful people do: in one step."""
    directory = repository / name / str(version)
    new = save(times(factor), directory / "new")
    return new.replace(directory / "model.onnx")


class Scene:
    """A repository under control."""

    def __init__(self, control: Coordinator, repository: ModelRepository) -> None:
        self.control = control
        self.repository = repository

    async def load(self, name: str = "net", **parameters: LoadParameter) -> None:
        await self.control.load(name, override_of(parameters, name))

    async def load_with(self, parameters: dict[str, LoadParameter], name: str = "net") -> None:
        await self.control.load(name, override_of(parameters, name))

    async def unload(self, name: str = "net") -> None:
        await self.control.unload(name, unload_dependents=False)

    async def refusal(self, work: Coroutine[Any, Any, None]) -> str:
        """Why it is refused."""
        with pytest.raises(InvalidRequest) as caught:
            await work
        return caught.value.message

    async def factor(self, version: str = "", name: str = "net") -> float:
        """What the model that serves multiplies with."""
        return await ask(self.repository.get(name, version))

    @property
    def states(self) -> dict[str, str]:
        return {
            f"{name}:{e.version or '-'}": (e.state.value if e.state else "") + (e.reason and f" {e.reason}")
            for name, e in self.repository.index()
        }

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait for a condition; a failure tells the states of the models."""
        try:
            await until(true)
        except AssertionError as exc:
            raise AssertionError(f"it did not come true: {self.states}") from exc


async def ask(model: Served) -> float:
    """One request of the value 1, bound and submitted at once."""
    answers: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
    tensor = Tensor.from_numpy("x", np.ones((1, 2), dtype=np.float32))
    head = model.bind(DecodedRequest(model_name="net", inputs=[tensor], default_binary=True))
    model.submit(InferRequest(head, [tensor.data], lambda _, response: answers.set_result(response), None))
    response = await answers
    if response.error is not None:
        raise response.error
    return float(response.outputs[0].numpy()[0, 0])


@asynccontextmanager
async def controlled(
    *paths: Path | Repository,
    limiter: Any = None,
    agents: Any = Path("/nowhere"),
    namespaces: Any = False,
    mode: Any = "explicit",
    poll_s: Any = 15,
    settle_s: Any = 0.03,
    resident: Any = tree_resident_bytes,
    **options: Any,
) -> AsyncIterator[Scene]:
    """Control in explicit mode, unless told otherwise, perhaps with a RateLimiter, a directory of repository
    agents or namespaces; at the end nothing may be left."""
    loop = asyncio.get_running_loop()
    repository = ModelRepository(namespaces=namespaces)
    spec = ModelSpec(
        model_control_mode=mode,
        repository_poll_secs=poll_s,
        model_namespacing=namespaces,
        repoagent_directory=agents,
        **{"model_load_thread_count": 2, **options},
    )
    settings = LoadSettings(options=spec, backend_settings={}, limiter=limiter or NoLimiter())
    loader = Loader(settings, Completions(loop), loop)
    control = Coordinator(repository, loader, opened(paths), settle_s=settle_s, resident=resident)
    try:
        await control.start()
        yield Scene(control, repository)
    finally:
        await control.close()
    assert repository.served() == []
    assert not control.tasks
    assert control.retirement.draining == []
