"""What a model counts of requests that it refuses, cannot compute, or keeps waiting."""

import pytest

from tests.serving.engine import batcher, closed_gate, entered, serving
from tests.serving.fakes import FakeModel
from tests.waiting import until
from tpx.errors import ExecutionError, Overloaded
from tpx.serving.backends.contract import Arrays
from tpx.serving.distributions.latencies import latencies_of
from tpx.serving.distributions.settings import LatencySettings
from tpx.serving.request import InferRequest
from tpx.serving.scheduling.direct import DirectScheduler


class FullAfter(DirectScheduler):
    """Refuses requests while as many wait as it may hold."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def add(self, request: InferRequest) -> None:
        if len(self) >= self._most:
            raise Overloaded("Exceeds maximum queue size")
        super().add(request)


async def test_a_request_that_finds_the_queue_full_is_rejected() -> None:
    fake = FakeModel(gate=closed_gate())
    async with serving(fake, scheduler=FullAfter(1)) as client:
        taken = [client.send([[n, n]]) for n in range(3)]
        await entered(fake)
        with pytest.raises(Overloaded):
            client.send([[9, 9]])
        statistics = client.model.statistics
        assert statistics.failures == {"REJECTED": 1, "CANCELED": 0, "BACKEND": 0, "OTHER": 0}
        assert statistics.durations()["fail"].count == 1
        assert client.model.in_flight == 3
        fake.release(3)
        await client.all_answers(taken)
        assert statistics.durations()["success"].count == 3


async def test_what_the_backend_cannot_compute_is_counted_beside_what_it_can() -> None:
    def compute(inputs: Arrays) -> Arrays:
        if inputs["x"][0, 0] < 0:
            raise ExecutionError("negative")
        return {"y": inputs["x"] * 2}

    async with serving(FakeModel(compute)) as client:
        await client.all_answers([client.send([[n, n]]) for n in (1, -1, 2, -2, -3)])
        statistics = client.model.statistics
        assert statistics.failures == {"REJECTED": 0, "CANCELED": 0, "BACKEND": 3, "OTHER": 0}
        assert statistics.durations()["success"].count == 2
        assert statistics.execution_count == 2


async def test_a_request_that_is_cancelled_in_the_queue_is_canceled_and_never_computed() -> None:
    fake = FakeModel(gate=closed_gate())
    async with serving(fake) as client:
        requests = [client.send([[n, n]]) for n in range(4)]
        await entered(fake)
        requests[3].cancel()
        assert client.model.pending == 3
        fake.release(4)
        await client.all_answers(requests)
        assert client.model.pending == 0
        assert client.model.statistics.failures["CANCELED"] == 1
        assert client.model.statistics.inference_count == 3
        assert len(fake.executed) == 3


async def test_requests_of_a_batch_in_hand_are_pending_each() -> None:
    fake = FakeModel(gate=closed_gate())
    async with serving(fake, scheduler=batcher()) as client:
        first = client.send([[0, 0]])
        await entered(fake)
        # a full batch of eight goes to the instance's hand, the rest stays in the queue
        rest = [client.send([[n, n]]) for n in range(11)]
        await until(lambda: client.model.pending == 11)
        fake.release()
        await client.answer(first)
        await entered(fake)
        assert client.model.pending == 3
        fake.release(8)
        await client.all_answers(rest)
        assert client.model.pending == 0


@pytest.mark.parametrize("inline_below_ns", [0, 10**9])
async def test_distributions_see_what_the_counters_see(inline_below_ns: int) -> None:
    fake = FakeModel(inline=True)
    async with serving(fake, inline_below_ns=inline_below_ns) as client:
        model = client.model
        model.statistics.latencies = kept = latencies_of(
            model.config, LatencySettings(summary_latencies=True, histogram_latencies=True)
        )
        assert kept is not None
        for n in range(40):
            await client.answer(client.send([[n, n]]))
        durations = model.statistics.durations()
        for phase in ("queue", "compute_input", "compute_infer", "compute_output"):
            for name in (
                f"nv_inference_{phase}_summary_us",
                f"nv_inference_{phase}_duration_histogram_us",
            ):
                seen = kept.by_family[name]
                assert (seen.count, seen.total_ns) == (40, durations[phase].ns)
        assert kept.by_family["nv_inference_request_summary_us"].total_ns == durations["success"].ns


async def test_requests_of_a_failed_batch_that_are_computed_alone_are_seen_alone() -> None:
    def compute(inputs: Arrays) -> Arrays:
        if (inputs["x"] < 0).any():
            raise ExecutionError("negative")
        return {"y": inputs["x"]}

    fake = FakeModel(compute)
    async with serving(fake, scheduler=batcher(delay_ms=20)) as client:
        model = client.model
        model.statistics.latencies = kept = latencies_of(
            model.config, LatencySettings(histogram_latencies=True)
        )
        assert kept is not None
        await client.all_answers([client.send([[n, n]]) for n in (1, -1, 2)])
        assert model.statistics.failures["BACKEND"] == 1
        assert kept.by_family["nv_inference_request_duration_histogram_us"].count == 2
