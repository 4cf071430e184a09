"""A client without a network, and builders of what the tests of the load generator look at."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import numpy as np

from tpx.errors import WireError
from tpx.options import build
from tpx.perf.clients.base import PLAIN, Failure, OnResponse, RequestFields, Slot
from tpx.perf.clients.model import (
    ModelDescription,
    ModelKey,
    ServerDescription,
    Snapshot,
    TensorDescription,
)
from tpx.perf.connecting import ConnectedModel
from tpx.perf.inputs.feed import RoundRobin
from tpx.perf.inputs.requests import Requests
from tpx.perf.levels import Level
from tpx.perf.observer import SILENT, Observer
from tpx.perf.options import SessionSpec
from tpx.perf.records import Records
from tpx.perf.results import (
    ClientTimes,
    DataSummary,
    LevelResult,
    ServerBreakdown,
    Verdict,
    Window,
)
from tpx.perf.server_statistics import ModelTree, ServerStatistics
from tpx.perf.session import Session
from tpx.perf.settings import LevelSettings
from tpx.perf.statistics.summaries import LatencySummary, summarize
from tpx.protocol.tensors import Tensor

PLAIN_SPEC = build(SessionSpec, {"model": "identity"})
"""A run whose options are the defaults."""


@dataclass
class FakeResponse:
    """An answer of FakeClient: all of it comes at once."""

    status: int
    first_byte_ns: int
    units: int = 0

    @property
    def end_ns(self) -> int:
        return self.first_byte_ns

    @property
    def arrivals(self) -> list[int]:
        return [self.first_byte_ns]


class FakeConnection:
    """Answers one request at a time after the client's service time; can be broken."""

    def __init__(self, client: "FakeClient") -> None:
        self._client = client
        self._timer: asyncio.TimerHandle | None = None
        self.slot: Slot | None = None
        self.broken = False

    def send(self, request: Any, on_response: OnResponse) -> int:
        if self.broken:
            raise WireError("the connection is closing")
        client = self._client
        client.sent.append(request)
        client.in_flight += 1
        client.most_in_flight = max(client.most_in_flight, client.in_flight)
        status = client.answer(len(client.sent))
        if status is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(client.service_s, self._respond, status, on_response)
        return len(client.sent)

    def _respond(self, status: int, on_response: OnResponse) -> None:
        self._client.in_flight -= 1
        on_response(FakeResponse(status, perf_counter_ns()))

    def lose(self) -> None:
        """Break, as a server does that closes the connection while it owes an answer."""
        self.broken = True
        if self._timer is not None:
            self._timer.cancel()
        self._client.in_flight -= 1
        if self.slot is not None:
            self.slot.on_lost(WireError("connection lost"))


@dataclass(frozen=True)
class FakeTemplate:
    """Implements Template."""

    request: bytes

    def fill(self, sequence: int) -> bytes:
        return b"%d:%b" % (sequence, self.request)


class FakeClient:
    """Implements Client; `answer` maps the number of a request to its status, None for no answer at all."""

    success = 200
    streams = False
    slots_per_connection = math.inf

    def __init__(self, service_s: float = 0.001, answer: Callable[[int], int | None] = lambda _: 200) -> None:
        self.service_s = service_s
        self.answer = answer
        self.sent: list[Any] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.slots: list[Slot] = []
        self.renewed = 0
        self.refusals = 0
        """How many renewals fail before one works."""
        self.closed = False

    async def prepare(self, tensors: Sequence[Tensor], fields: RequestFields = PLAIN) -> bytes:
        return b"".join(bytes(t.data) for t in tensors)

    async def template(self, tensors: Sequence[Tensor], fields: RequestFields) -> "FakeTemplate":
        return FakeTemplate(await self.prepare(tensors, fields))

    async def open(self, count: int) -> Sequence[Slot]:
        del self.slots[count:]
        while len(self.slots) < count:
            connection = FakeConnection(self)
            slot = Slot(connection, connection.send)
            connection.slot = slot
            self.slots.append(slot)
        return self.slots

    async def renew(self, slot: Slot, call: object) -> None:
        if self.refusals:
            self.refusals -= 1
            raise WireError("cannot connect")
        self.renewed += 1
        connection = FakeConnection(self)
        connection.slot = slot
        slot.connection, slot.send = connection, connection.send

    def failure(self, response: Any) -> Failure:
        return Failure(f"HTTP {response.status}", f"the server said {response.status}")

    async def close(self) -> None:
        self.closed = True


class FakeControl:
    """Implements Control over counters that the test sets."""

    def __init__(self) -> None:
        self.counters: dict[ModelKey, dict[str, int]] = {}
        self.fails: WireError | None = None

    async def server(self) -> ServerDescription:
        return ServerDescription(name="fake", version="1", extensions=frozenset({"statistics"}))

    async def model(self, model: ModelKey) -> ModelDescription:
        return ModelDescription(name=model.name, inputs=())

    async def statistics(self, model: ModelKey) -> Snapshot:
        if self.fails is not None:
            raise self.fails
        return {k: dict(c) for k, c in self.counters.items() if model.name in ("", k.name)}

    async def set_trace(self, settings: Mapping[str, Sequence[str]]) -> None:
        pass

    async def close(self) -> None:
        pass


def make_session(
    client: FakeClient,
    control: FakeControl | None = None,
    batch_size: int = 1,
    observer: Observer = SILENT,
    stop: asyncio.Event | None = None,
    timestamps_ns: tuple[int, ...] = (),
) -> Session:
    """A session over fakes; `timestamps_ns` are those of a fixed schedule."""
    control = control or FakeControl()
    connected = ConnectedModel(
        server=ServerDescription(name="fake", version="1", extensions=frozenset()),
        model=ModelDescription(
            name="m", inputs=(TensorDescription(name="x", datatype="FP32", shape=(1,)),), max_batch_size=8
        ),
        client=client,
        control=control,
        requests=Requests(feed=RoundRobin((b"request",)), data=DataSummary(), timestamps_ns=timestamps_ns),
        statistics=ServerStatistics(control, ModelTree(ModelKey("m")), available=True),
    )

    @asynccontextmanager
    async def connect(*_: object) -> AsyncIterator[ConnectedModel]:
        yield connected

    spec = build(SessionSpec, {"model": "m", "url": "fake:1", "batch_size": batch_size})
    return Session(spec, observer=observer, stop=stop, connect=connect)


def measure(session: Session, level: Level, settings: LevelSettings) -> LevelResult:
    """One level of a session, in an event loop of its own."""

    async def measured() -> LevelResult:
        async with session:
            return await session.measure(level, settings)

    return asyncio.run(measured())


def make_window(throughput: float, latency_us: float, *, failed: int = 0, seconds: float = 1.0) -> Window:
    """A window with that throughput, every request of that latency; none where the throughput is 0."""
    count = int(throughput * seconds)
    latencies = np.full(count, int(latency_us * 1000), dtype=np.int64)
    return Window(
        start_ns=0,
        end_ns=int(seconds * 1e9),
        requests=count,
        failed=failed,
        throughput_infer_per_s=throughput,
        latency=summarize(latencies) if count else None,
        client_busy=0.1,
        stabilizing_percentile=None,
    )


def make_level(value: int = 1, throughput: float = 4478.72, **changes: Any) -> LevelResult:
    """A level with the figures that perf_analyzer 2.51 measured of an identity model on Triton."""
    latency = LatencySummary(
        count=8152,
        mean_ns=221_400,
        std_ns=259_300.0,
        min_ns=150_000,
        max_ns=5_000_000,
        percentiles_ns={50.0: 211_900, 90.0: 275_100, 95.0: 295_500, 99.0: 340_000, 99.9: 900_000},
    )
    fields: dict[str, Any] = {
        "level": Level("concurrency", value),
        "batch_size": 1,
        "verdict": Verdict.OK,
        "stable": True,
        "percentile": None,
        "windows": (make_window(throughput, 221), make_window(throughput, 220), make_window(throughput, 222)),
        "requests": 8152,
        "duration_ns": 1_800_000_000,
        "throughput_infer_per_s": throughput,
        "latency": latency,
        "client": ClientTimes(send_ns=26_400, wait_ns=192_200, receive_ns=300),
        "client_busy": 0.0111,
        "server": ServerBreakdown(
            model="identity",
            version="1",
            inference_count=8152,
            execution_count=8152,
            success_count=8152,
            success_ns=8152 * 113_500,
            queue_count=8152,
            queue_ns=8152 * 25_000,
            compute_count=8152,
            compute_input_ns=8152 * 5_800,
            compute_infer_ns=8152 * 63_500,
            compute_output_ns=8152 * 17_800,
        ),
        "failed": 0,
        "errors": (),
    }
    return LevelResult(**(fields | changes))


def make_records(ends_ms: Sequence[float], latency_ms: float = 1.0, failed_at: Sequence[int] = ()) -> Records:
    """Requests that ended at these times; those at the given positions failed."""
    records = Records(block_rows=4)
    for i, end_ms in enumerate(ends_ms):
        end, start = int(end_ms * 1e6), int((end_ms - latency_ms) * 1e6)
        records.append(start, start, start + 10, end - 20, end, 500 if i in failed_at else 0)
    return records
