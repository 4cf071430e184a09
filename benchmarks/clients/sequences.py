"""Sequences over gRPC in a closed loop, in the bench's own process; every answer is checked."""

import asyncio
import struct
from itertools import count
from statistics import median, quantiles
from time import perf_counter_ns

import numpy as np

from benchmarks.payloads import GRPC_PATH
from benchmarks.results import Sample
from benchmarks.servers import Server
from tpx.errors import MeasurementError
from tpx.perf.loops import event_loop
from tpx.protocol import messages
from tpx.protocol.grpc.client import GrpcClientConnection, connect
from tpx.protocol.grpc.client_call import GrpcResponse, PreparedCall
from tpx.protocol.tensors import Tensor
from tpx.protocol.v2_protobuf import set_parameters

LENGTH = 20
"""Requests of a sequence."""
PER_CONNECTION = 16
_ids = count(1)


def measure(server: Server, model: str, sequences: int, seconds: float) -> Sample:
    """So many sequences at a time, each its requests one after the other, then another one.

    Raises MeasurementError for a wrong answer, or none.
    """
    before = server.process.cpu_s()
    with asyncio.Runner(loop_factory=event_loop) as runner:
        times_ns, elapsed_ns = runner.run(_run(server.grpc_port, model, sequences, seconds))
    used = server.process.cpu_s() - before
    return {
        "throughput": len(times_ns) / elapsed_ns * 1e9,
        "p50_us": median(times_ns) / 1e3,
        "p99_us": quantiles(times_ns, n=100)[98] / 1e3,
        "server_cpu_us": used / len(times_ns) * 1e6,
        "failed": 0,
    }


async def _run(port: int, model: str, sequences: int, seconds: float) -> tuple[list[int], int]:
    connections = [await connect("127.0.0.1", port) for _ in range(-(-sequences // PER_CONNECTION))]
    ends_ns = perf_counter_ns() + int(seconds * 1e9)
    began_ns = perf_counter_ns()
    walkers = [_Walker(connections[index % len(connections)], model, ends_ns) for index in range(sequences)]
    try:
        async with asyncio.timeout(seconds + 30):
            await asyncio.gather(*(walker.ended for walker in walkers))
    except TimeoutError as exc:
        raise MeasurementError(f"sequences of '{model}' are not answered") from exc
    finally:
        for connection in connections:
            connection.close()
    return [took for walker in walkers for took in walker.times_ns], perf_counter_ns() - began_ns


class _Walker:
    """Goes through one sequence after the other until the time is up, and ends the last one."""

    def __init__(self, connection: GrpcClientConnection, model: str, ends_ns: int) -> None:
        self.times_ns: list[int] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._connection = connection
        self._model = model
        self._ends_ns = ends_ns
        self._begin()

    def _begin(self) -> None:
        self._step = 0
        number = next(_ids)
        first, middle, last = (self._call(number, start=s, end=e) for s, e in ((1, 0), (0, 0), (0, 1)))
        self._calls = [first, *[middle] * (LENGTH - 2), last]
        self._send()

    def _call(self, number: int, *, start: int, end: int) -> PreparedCall:
        one = Tensor.from_numpy("INPUT", np.ones((1, 1), np.float32))
        parameters = {"sequence_id": number, "sequence_start": bool(start), "sequence_end": bool(end)}
        message = messages.ModelInferRequest(model_name=self._model, raw_input_contents=[bytes(one.data)])
        message.inputs.add(name=one.name, datatype=one.datatype, shape=one.shape)
        set_parameters(message.parameters, parameters)
        return self._connection.prepare(GRPC_PATH, message.SerializeToString())

    def _send(self) -> None:
        self._sent_ns = perf_counter_ns()
        self._connection.call(self._calls[self._step], self._answered)

    def _answered(self, response: GrpcResponse) -> None:
        now_ns = perf_counter_ns()
        self._step += 1
        # the only raw tensor is the end of the message
        if response.status or bytes(response.data)[-4:] != struct.pack("<f", self._step):
            problem = response.message or f"step {self._step} of a sequence has a wrong sum"
            self.ended.set_exception(MeasurementError(f"{self._model}: {problem}"))
            return
        self.times_ns.append(now_ns - self._sent_ns)
        if self._step < LENGTH:
            self._send()
        elif now_ns < self._ends_ns:
            self._begin()
        else:
            self.ended.set_result(None)
