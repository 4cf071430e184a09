"""Workers on several nodes of a Ray cluster, one process per node.

The actor on a node starts a worker process and forwards its reports. Their times are converted to this
machine's clock. Clock offsets are measured by round trips around each level; the shortest round
trip bounds the error (Cristian 1989).
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from time import perf_counter_ns
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from tpx.errors import MeasurementError, TpxError, UsageError
from tpx.perf.inputs.feed import Share
from tpx.perf.loads.base import LoadRequest
from tpx.perf.loads.worker import Go, OpenTarget, Stop, WorkerReport
from tpx.perf.loads.workers import GATHER_S, GRACE_S, LocalWorker, StartWorker
from tpx.perf.records import FIELDS, elapsed_ns
from tpx.protocol.json_values import JsonValue
from tpx.ray_driver import connected
from tpx.report.digits import MICROSECONDS

if TYPE_CHECKING:
    from ray import ObjectRef as Reference

T = TypeVar("T")

CLOCK_ROUND_TRIPS = 30
NODE_HEADSTART_NS = 500_000_000
"""Time within which a command reaches every node."""
_TIMES = [name for name in FIELDS if name.endswith("_ns")]


class NodeLoad:
    """The actor on a node: forwards commands to one worker process and returns its reports."""

    def __init__(self, share: Share, open_target: OpenTarget) -> None:
        self._worker = LocalWorker(share, open_target)

    async def clock(self) -> int:
        """Return this node's clock in ns."""
        return perf_counter_ns()

    async def send(self, command: LoadRequest | Go | Stop) -> None:
        """Forward a command to the worker."""
        self._worker.send(command)

    async def answer(self, kind: type[object], patience_s: float) -> object:
        """Return the worker's next answer, or the error that it ended with."""
        try:
            return await self._worker.answer(kind, patience_s)
        except TpxError as exc:
            return exc

    async def take(self) -> Sequence[WorkerReport]:
        """Return the worker's reports since the last call."""
        self._worker.check()
        return self._worker.take()

    async def close(self) -> None:
        """End the worker process."""
        await self._worker.close()


@contextmanager
def ray_nodes(count: int) -> Iterator[StartWorker]:
    """Connect to Ray until the context ends; yield a function that starts workers, each on its own node.

    Raises UsageError if the cluster has too few nodes.
    """
    with connected():
        import ray

        nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        if len(nodes) < count:
            raise UsageError(f"--cluster {count}: Ray has {len(nodes)} nodes with processors")

        def start(share: Share, open_target: OpenTarget) -> NodeWorker:
            node = nodes[share.number]
            return NodeWorker(node["NodeID"], node["NodeManagerAddress"], share, open_target)

        yield start


class NodeWorker:
    """Implements RunningWorker for a process on another node; use it on the event loop."""

    headstart_ns = NODE_HEADSTART_NS

    def __init__(self, node: str, address: str, share: Share, open_target: OpenTarget) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        place = NodeAffinitySchedulingStrategy(node, soft=False)
        self._actor = (
            ray.remote(NodeLoad).options(num_cpus=0, scheduling_strategy=place).remote(share, open_target)
        )
        self._name = f"worker {share.number + 1} of {share.of} on {address}"
        self._offset_ns = 0
        """Offset to add to the node's clock to get this machine's."""
        self._error_ns = 0
        self._fault = ""
        self._rows = 0
        self._late_ns = 0
        self._reports: list[WorkerReport] = []
        self._heard_ns = 0
        """Time of the last report; 0 if none is due."""
        self._one_at_a_time = asyncio.Lock()
        self._commands: set[asyncio.Task[None]] = set()
        self._taking = asyncio.ensure_future(self._keep_taking())

    def take(self) -> Sequence[WorkerReport]:
        reports, self._reports = self._reports, []
        return reports

    def check(self) -> None:
        if self._fault:
            raise MeasurementError(f"{self._name} of tpx perf: {self._fault}; its measurements are lost")
        silent_ns = perf_counter_ns() - self._heard_ns
        if self._heard_ns and silent_ns > GRACE_S * 1e9:
            raise MeasurementError(
                f"{self._name} of tpx perf has not responded for {silent_ns / 1e9:.0f} s; its rows are lost"
            )

    def send(self, command: LoadRequest | Go | Stop) -> None:
        if isinstance(command, LoadRequest):
            self._reports.clear()
        self._heard_ns = perf_counter_ns() if isinstance(command, Go) else 0
        if isinstance(command, Go):
            # to the node's clock
            command = replace(command, origin_ns=command.origin_ns - self._offset_ns)
        task = asyncio.ensure_future(self._send(command))
        self._commands.add(task)
        task.add_done_callback(self._commands.discard)

    async def answer(self, kind: type[T], patience_s: float) -> T:
        answer: T | TpxError = await self._ask(self._actor.answer.remote(kind, patience_s))
        if isinstance(answer, TpxError):
            raise answer
        # of all round trips the shortest is the least disturbed by queueing
        best_ns = None
        for _ in range(CLOCK_ROUND_TRIPS):
            before_ns = perf_counter_ns()
            theirs_ns = await self._ask(self._actor.clock.remote())
            took_ns = perf_counter_ns() - before_ns
            if best_ns is None or took_ns < best_ns:
                best_ns = took_ns
                self._offset_ns = before_ns + took_ns // 2 - theirs_ns
                self._error_ns = took_ns // 2
        await self._take_reports()
        return answer

    def take_notices(self) -> Sequence[str]:
        rows, self._rows = self._rows, 0
        late_us, self._late_ns = self._late_ns / 1000, 0
        return (
            f"{self._name}: {rows} requests, the latest {late_us:,.0f} {MICROSECONDS} behind its time; "
            f"clock offset {self._offset_ns / 1e6:,.3f} ms, known to {self._error_ns / 1000:,.0f} "
            f"{MICROSECONDS}",
        )

    async def close(self) -> None:
        self._taking.cancel()
        with suppress(TpxError, asyncio.CancelledError):
            await asyncio.wait_for(self._ask(self._actor.close.remote()), GRACE_S)

    async def _send(self, command: LoadRequest | Go | Stop) -> None:
        with suppress(MeasurementError):  # `check` reports it
            await self._ask(self._actor.send.remote(command))

    async def _ask(self, reference: "Reference") -> JsonValue:
        """Await a call. Raises MeasurementError if the node or its process is gone."""
        from ray.exceptions import RayError

        try:
            return await reference
        except RayError as exc:
            self._fault = str(exc).strip().splitlines()[-1]
            raise MeasurementError(f"{self._name} of tpx perf: {self._fault}") from exc

    async def _keep_taking(self) -> None:
        while not self._fault:
            await self._take_reports()
            await asyncio.sleep(GATHER_S)

    async def _take_reports(self) -> None:
        """Fetch what is new, with times by this machine's clock. If the node is gone, `check` reports it."""
        async with self._one_at_a_time:
            try:
                reports: Sequence[WorkerReport] = await self._ask(self._actor.take.remote())
            except MeasurementError:
                return
            for report in reports:
                rows, offset_ns = report.rows.copy(), self._offset_ns
                for name in _TIMES:
                    column = rows[name]
                    column[column != 0] += offset_ns
                self._rows += len(rows)
                if len(rows):
                    self._late_ns = max(
                        self._late_ns, int(np.max(elapsed_ns(rows, "intended_ns", "start_ns")))
                    )
                # 0 until all rows were reported once
                complete_ns = report.complete_ns and report.complete_ns + offset_ns
                times_ns = report.times_ns + offset_ns
                self._reports.append(replace(report, rows=rows, times_ns=times_ns, complete_ns=complete_ns))
                self._heard_ns = self._heard_ns and perf_counter_ns()
