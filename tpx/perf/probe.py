"""One request before a run, to see whether the server answers it, and with what."""

import asyncio
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

from tpx.errors import InvalidRequest, MeasurementError, WireError
from tpx.perf.clients.model import ModelDescription, TensorSpec
from tpx.perf.clients.outputs import parts_of, read_outputs
from tpx.perf.connecting import ConnectedModel
from tpx.perf.levels import Level
from tpx.perf.loads.senders import end_sequences
from tpx.perf.options import SessionSpec
from tpx.protocol.tensors import Tensor

PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedOutput:
    """An output that came; `wrong` says how it differs from what the model says of itself."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    wrong: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The outcome of the request: an `error` in the server's words, or outputs. `mismatch` is how they differ
    from the data's expected ones."""

    latency_ns: int
    error: str = ""
    outputs: tuple[ProbedOutput, ...] = ()
    responses: int = 1
    mismatch: str = ""

    @property
    def good(self) -> bool:
        return not (self.error or self.mismatch or any(output.wrong for output in self.outputs))


async def probe(connected: ConnectedModel, spec: SessionSpec) -> Probe:
    """Send the first request of the data, and end its sequence.

    Raises MeasurementError where no answer comes in the timeout, or a minute where there is none.
    """
    (slot,) = await connected.client.open(1)
    connected.feed.begin(Level("concurrency", 1))
    source = connected.feed.source(0)
    done: asyncio.Future[Probe] = asyncio.get_running_loop().create_future()
    start_ns = perf_counter_ns()

    def answered(response: object) -> None:
        if not done.done():
            latency_ns = perf_counter_ns() - start_ns
            done.set_result(_judged(connected, spec.inputs.batch_size, response, source.step, latency_ns))

    def lost(error: WireError) -> None:
        if not done.done():
            done.set_exception(error)

    slot.on_lost = lost
    slot.send(source.next(), answered)
    patience_s = spec.target.timeout or PATIENCE_S
    try:
        async with asyncio.timeout(patience_s):
            return await done
    except TimeoutError as exc:
        raise MeasurementError(f"the probe request was not answered within {patience_s:g} s") from exc
    finally:
        await end_sequences([(slot, source)], patience_s)


def _judged(connected: ConnectedModel, batch_size: int, response: Any, step: int, latency_ns: int) -> Probe:
    """While the response's bytes are there, which is only until the callback ends."""
    client = connected.client
    if response.status != client.success:
        failure = client.failure(response)
        return Probe(latency_ns=latency_ns, error=f"{failure.code}: {failure.message}")
    try:
        answers = list(read_outputs(parts_of(response)))
    except (InvalidRequest, KeyError, TypeError, ValueError) as exc:
        return Probe(latency_ns=latency_ns, error=f"the response cannot be read: {exc}")
    check = connected.feed.check
    first = next((tensors for tensors in answers if tensors), [])
    return Probe(
        latency_ns=latency_ns,
        outputs=tuple(_output(connected.model, tensor, batch_size) for tensor in first),
        responses=len(answers),
        mismatch="" if check is None else check(step, response),
    )


def _output(model: ModelDescription, tensor: Tensor, batch_size: int) -> ProbedOutput:
    spec = next((spec for spec in model.outputs if spec.name == tensor.name), None)
    return ProbedOutput(
        name=tensor.name,
        datatype=tensor.datatype,
        shape=tensor.shape,
        wrong="" if spec is None else _wrong(spec, tensor, batch_size if model.max_batch_size else None),
    )


def _wrong(spec: TensorSpec, tensor: Tensor, batch_size: int | None) -> str:
    if tensor.datatype != spec.datatype:
        return f"the model says {spec.datatype}"
    if not len(tensor.data):
        return ""  # it lies in shared memory, or has no elements
    expected = spec.shape if batch_size is None or spec.shape_tensor else (batch_size, *spec.shape)
    fits = len(expected) == len(tensor.shape) and all(
        e in (-1, d) for e, d in zip(expected, tensor.shape, strict=True)
    )
    return "" if fits else f"the model says {list(expected)}"
