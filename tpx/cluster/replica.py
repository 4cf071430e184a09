"""One `tpx serve` on a node: started, monitored, restarted, measured, drained and stopped."""

import asyncio
import contextlib
import math
import os
import re
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections import Counter, deque
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from tpx import __version__
from tpx.analyzer.runners.local import ChildServer
from tpx.analyzer.runners.servers import Addresses
from tpx.cluster.canary import CanaryCounters, Reading
from tpx.cluster.policy import Backoff, ReplicaSample
from tpx.cluster.spec import LATENCIES, from_plain
from tpx.errors import MeasurementError, TpxError
from tpx.protocol.json_values import JsonObject

ASK_TIMEOUT_S = 2.0
STOP_PATIENCE_S = 35.0
"""Time to wait for a stop: slightly longer than `tpx serve` by default drains requests in flight."""
LOG_ROOM_BYTES = 1 << 20
RECENT_S = 60.0
"""Time that a replica's p99 covers, up to a share of 1 / RECENT_PARTS more."""
RECENT_PARTS = 12
_ANSWERED, _FAILED = b"nv_inference_request_success", b"nv_inference_request_failure"
_QUEUED, _CPU = b"nv_inference_queue_duration_us", b"process_cpu_seconds_total"
_BUCKET, _IN_FLIGHT = f"{LATENCIES}_bucket".encode(), b"tpx_requests_in_flight"
_SERIES = re.compile(
    rb"^(%s)(?:\{([^}]*)\})? (\S+)" % b"|".join((_ANSWERED, _FAILED, _QUEUED, _CPU, _BUCKET, _IN_FLIGHT)),
    re.M,
)
_MODEL = re.compile(rb'\bmodel="((?:[^"\\]|\\.)*)"')
_BOUND = re.compile(rb'\ble="([^"]*)"')
_STORE = re.compile(r"^\w+://")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStatus:
    """State of a replica, as reported by itself."""

    state: str
    """One of starting, ready, unready, waiting (for a restart), failed (never served), draining, stopped."""
    host: str
    http_port: int = 0
    grpc_port: int = 0
    metrics_port: int = 0
    """0 if its server has no metrics page."""
    pid: int = 0
    restarts: int = 0
    models: int = 0
    served: bool = False
    """True once it has been ready."""
    message: str = ""
    version: str = __version__
    sample: ReplicaSample = field(default_factory=ReplicaSample)
    reading: Reading = field(default_factory=dict)
    """Counters of its models, if asked for."""


class Replica:
    """Keeps one server running until stopped. Runs as an actor on the node chosen by Ray."""

    def __init__(self, replica: str, plain: JsonObject, host: str) -> None:
        self._spec = from_plain(plain)
        self._host = host
        self._log = Path(self._spec.server.log_dir) / self._spec.address.name / f"{replica}.log"
        self._server: ChildServer | None = None
        self._backoff = Backoff()
        self._meter = ReplicaMeter(self._spec.replica.cpus)
        self._state = "starting"
        self._message = ""
        self._restarts = 0
        self._served = False
        self._keeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start to keep the server running. Returns at once."""
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._serve_forever())

    async def status(self, with_reading: bool = False) -> ReplicaStatus:
        """Check the server and return the replica's state."""
        where = self._find_addresses()
        sample = ReplicaSample()
        if where is not None and self._state in ("ready", "unready"):
            ready = await asyncio.to_thread(_is_live, f"http://{where.http}/v2/health/ready")
            self._state = "ready" if ready else "unready"
            self._served = self._served or ready
            page = await asyncio.to_thread(_fetch_page, where.metrics_url)
            sample = self._meter.sample(page, time.monotonic()) if page else sample
        return ReplicaStatus(
            state=self._state,
            host=self._host,
            http_port=_parse_port(where.http) if where else 0,
            grpc_port=_parse_port(where.grpc) if where else 0,
            metrics_port=(urlsplit(where.metrics_url).port or 0) if where else 0,
            pid=(self._server.pid or 0) if self._server else 0,
            restarts=self._restarts,
            models=len(self._meter.models),
            served=self._served,
            message=self._message,
            sample=sample,
            reading=self._meter.models if with_reading else {},
        )

    async def stop(self) -> None:
        """Let the server answer the requests in flight, then stop it."""
        self._state = "draining"
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper
        if self._server is not None:
            await self._server.stop(STOP_PATIENCE_S)
            self._server = None
        self._state = "stopped"

    async def log(self, lines: int) -> str:
        """Return the last lines of the server's log."""
        return await asyncio.to_thread(_read_tail, self._log, lines)

    def _find_addresses(self) -> Addresses | None:
        if self._server is None:
            return None
        with contextlib.suppress(MeasurementError):
            return self._server.addresses
        return None

    async def _serve_forever(self) -> None:
        while True:
            began_s = time.monotonic()
            try:
                await self._serve()
            except TpxError as exc:
                self._message = exc.message
            except OSError as exc:  # disk full or process limit of the node: may be temporary, so retry
                self._message = str(exc)
            wait_s = self._backoff.after_death(time.monotonic() - began_s)
            self._state = "waiting" if self._served else "failed"
            await asyncio.sleep(wait_s if self._served else max(wait_s, 1.0))
            self._restarts += 1
            self._state = "starting"

    async def _serve(self) -> None:
        """Run one server until it exits. Always raises TpxError."""
        self._require_repositories()
        self._require_disk_space()
        command = (sys.executable, "-m", "tpx", "serve", *self._spec.serve_words(self._host))
        self._server = await ChildServer.start(command, self._log, {"TPX_REPLICA": str(os.getpid())})
        try:
            await self._server.ready(self._spec.server.ready_timeout_secs)
            self._meter.restart()
            self._state, self._message = "unready", ""
            raise MeasurementError(await self._server.died())
        finally:
            if self._keeper is not None:  # `stop` was not called: remove the rest of the server
                await self._server.stop(0)
                self._server = None

    def _require_repositories(self) -> None:
        for where in self._spec.server.model_repository:
            if not _STORE.match(where) and not Path(where).is_dir():
                raise MeasurementError(f"--model-repository {where}: no such directory on node {self._host}")

    def _require_disk_space(self) -> None:
        """Raise MeasurementError if the log's disk is full: the server announces its ports in the log."""
        folder = self._log.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(folder).free
        except OSError as exc:
            raise MeasurementError(f"--log-dir {folder}: {exc.strerror} on node {self._host}") from exc
        if free < LOG_ROOM_BYTES:
            raise MeasurementError(
                f"--log-dir {folder}: the disk is full on node {self._host}; free space, or name another "
                "directory"
            )


class ReplicaMeter:
    """Converts consecutive metrics pages into the activity between them."""

    def __init__(self, cpus: float) -> None:
        self._cpus = cpus or 1.0
        self.restart()

    def restart(self) -> None:
        """Forget all pages: the counters of a new server start at zero."""
        self._before: dict[bytes, float] | None = None
        self._at_s = 0.0
        self.models: Reading = {}
        """Counters of the last page."""
        self._earlier: deque[tuple[float, Reading]] = deque([(0.0, {})])

    def sample(self, page: bytes, now_s: float) -> ReplicaSample:
        """Return the activity since the previous page; an empty sample for the first page."""
        totals, self.models = _parse_metrics(page)
        before, since_s = self._before, now_s - self._at_s
        self._before, self._at_s = totals, now_s
        if now_s - self._earlier[-1][0] >= RECENT_S / RECENT_PARTS:
            self._earlier.append((now_s, self.models))
        while len(self._earlier) > RECENT_PARTS + 1:
            self._earlier.popleft()
        if before is None or since_s <= 0:
            return ReplicaSample()

        def grown(name: bytes) -> float:
            return max(0.0, totals.get(name, 0.0) - before.get(name, 0.0))

        done = grown(_ANSWERED)
        return ReplicaSample(
            requests_per_s=done / since_s,
            queue_ms=grown(_QUEUED) / done / 1000 if done else 0.0,
            utilization=grown(_CPU) / since_s / self._cpus,
            p99_ms=self._compute_p99_ms(),
        )

    def _compute_p99_ms(self) -> float | None:
        earlier = self._earlier[0][1]
        tails = [counters.quantile_us(0.99, earlier.get(name)) for name, counters in self.models.items()]
        known = [tail / 1000 for tail in tails if tail is not None]
        return max(known, default=None)


def _parse_metrics(page: bytes) -> tuple[dict[bytes, float], Reading]:
    """Return the sums of families over their labels, and the counters of each model, all versions."""
    totals: dict[bytes, float] = {}
    answered, failed, in_flight = Counter[str](), Counter[str](), Counter[str]()
    below: dict[str, Counter[float]] = {}
    for name, labels, value in _SERIES.findall(page):
        model, bound = _parse_labels(labels)
        if name == _BUCKET:
            below.setdefault(model, Counter())[bound] += int(value)
            continue
        totals[name] = totals.get(name, 0.0) + float(value)
        if name == _ANSWERED:
            answered[model] += int(value)
        elif name == _FAILED and b"CANCELED" not in labels:
            failed[model] += int(value)
        elif name == _IN_FLIGHT:
            in_flight[model] += int(value)
    return totals, {
        model: CanaryCounters.of(count, failed[model], below.get(model, {}), in_flight[model])
        for model, count in answered.items()
    }


@lru_cache(maxsize=1 << 16)
def _parse_labels(labels: bytes) -> tuple[str, float]:
    """Return the model and the upper bound among the labels of a series."""
    model, bound = _MODEL.search(labels), _BOUND.search(labels)
    return model[1].decode() if model else "", float(bound[1]) if bound else math.inf


def _read_tail(path: Path, lines: int) -> str:
    """Return the last lines of a file, or why it cannot be read."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return "".join(deque(file, lines)).rstrip("\n")
    except OSError as exc:
        return f"{path}: {exc.strerror}"


def _parse_port(address: str) -> int:
    return int(address.rpartition(":")[2])


_OWN_NODE = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opens pages of a replica's own server, which no proxy of the environment is asked for."""


def _fetch_page(url: str) -> bytes:
    """Return a page; nothing if there is no URL, as without metrics, or no answer."""
    if not url:
        return b""
    try:
        with _OWN_NODE.open(url, timeout=ASK_TIMEOUT_S) as answer:
            return bytes(answer.read())
    except (OSError, urllib.error.URLError):
        return b""


def _is_live(url: str) -> bool:
    try:
        with _OWN_NODE.open(url, timeout=ASK_TIMEOUT_S) as answer:
            return int(answer.status) == 200
    except (OSError, urllib.error.URLError):
        return False
