"""A region is in use from the moment its request comes until that is answered, over both protocols."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serving.frontends.shared_memory.requests import (
    SYSTEM,
    ask,
    in_region,
    register,
    request,
    written,
)
from tests.serving.gated import GATE, installed
from tests.serving.live import Channel, Live, serving
from tests.serving.repository.composed import gated
from tests.serving.shared_memory.segments import segment
from tests.serving.transports import Transport
from tests.waiting import eventually


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server whose model `slow` answers while the gate is open."""
    repository = tmp_path_factory.mktemp("models")
    gated(repository, "slow")
    config = repository / "slow" / "config.pbtxt"
    config.write_text(config.read_text().replace("dims: [2]", "dims: [-1]"))
    with installed(tmp_path_factory.mktemp("site")), serving(repository) as running:
        yield running


@pytest.fixture
def channel(live: Live) -> Iterator[Channel]:
    with live.channel() as channel:
        yield channel


@pytest.fixture(autouse=True)
def closed_gate(live: Live, region: Path) -> Iterator[None]:
    GATE.close()
    yield
    GATE.open()
    in_flight(live, 0)


def in_flight(live: Live, count: int) -> None:
    """Wait until so many requests are on their way through the model."""
    [model] = live.server.plane.served()
    eventually(lambda: model.in_flight == count)


def unregister(live: Live, name: str = "/region/r") -> tuple[int, str]:
    answer = live.http("POST", f"{SYSTEM}{name}/unregister")
    return answer.status, answer.error if answer.body else ""


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [(in_region(8), None), (None, in_region(40)), (in_region(8), in_region(40)), (in_region(), in_region())],
)
def test_a_region_that_a_request_uses_is_unregistered_after_it(
    live: Live, channel: Channel, region: Path, transport: Transport, inputs: Any, outputs: Any
) -> None:
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, transport, inputs, outputs, "slow")
        in_flight(live, 1)
        assert unregister(live) == (200, "")
        assert unregister(live, "") == (200, "")
        channel.call("SystemSharedMemoryUnregister", name="r")
        assert [each["name"] for each in live.get(SYSTEM + "/status").json] == ["r"]
        GATE.open()
        assert asked.result(20).model == "slow"
    if outputs is not None:
        sent = [1, 2] if inputs is None else written(region, inputs["shared_memory_offset"])
        assert written(region, outputs["shared_memory_offset"]) == sent
    assert live.get(SYSTEM + "/status").json == []


def test_a_request_whose_client_left_uses_its_region_until_it_is_computed(live: Live, region: Path) -> None:
    with live.begin("/v2/models/slow/infer", request(in_region(), in_region(40))):
        in_flight(live, 1)
    assert unregister(live) == (200, "")
    assert [each["name"] for each in live.get(SYSTEM + "/status").json] == ["r"]
    GATE.open()
    in_flight(live, 0)
    eventually(lambda: live.get(SYSTEM + "/status").json == [])


def test_a_large_input_is_read_while_the_model_computes_another_request(live: Live) -> None:
    size = 128 << 10
    body = request(in_region(0, size, "large"), shape=(1, size // 4))
    with segment(size) as path, ThreadPoolExecutor(2) as pool:
        assert register(live, "large", key=f"/{path.name}", byte_size=size).status == 200
        asked = []
        for number in (1, 2):
            path.write_bytes(np.full(size // 4, number, np.float32).tobytes())
            asked.append(pool.submit(live.infer, "slow", body))
            in_flight(live, number)
        path.write_bytes(np.full(size // 4, 3, np.float32).tobytes())
        GATE.open()
        assert asked[1].result(20).json["outputs"][0]["data"][:2] == [2, 2]
        assert asked[0].result(20).status == 200
        assert unregister(live, "/region/large") == (200, "")


@pytest.mark.parametrize("inputs", [in_region(), in_region(region="none"), in_region(offset=63)])
def test_a_request_that_is_refused_uses_nothing(live: Live, region: Path, inputs: Any) -> None:
    wrong = request(inputs, in_region(), shape=(9, 9, 9))
    assert live.infer("slow", wrong).status in (400, 404)
    assert unregister(live) == (200, "")
