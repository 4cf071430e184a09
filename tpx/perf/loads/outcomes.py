"""What became of a load's requests: their rows, how many failed, and the first failure of each kind."""

from collections.abc import Mapping
from time import perf_counter_ns
from typing import Any

from tpx.errors import WireError
from tpx.perf.clients.base import LOST, MISMATCH, TIMED_OUT, Client, Failure, StreamedResponse
from tpx.perf.inputs.feed import Check
from tpx.perf.records import SUCCESS, Records

_CODES = {LOST: "connection lost", TIMED_OUT: "timeout", MISMATCH: "output mismatch"}


class Outcomes:
    """Shared by the slots of one load."""

    __slots__ = (
        "_arrivals", "_client", "_failures", "append", "check", "failed", "records", "streams", "success",
    )  # fmt: skip

    def __init__(self, client: Client, check: Check | None = None) -> None:
        self.check = check
        self.records = Records()
        self.append = self.records.append
        self.success = client.success
        self.streams = client.streams
        self._arrivals = self.records.arrivals
        self.failed = 0
        self._client = client
        self._failures: dict[int, Failure] = {}

    def failures(self) -> Mapping[int, Failure]:
        """The first failure of each status that occurred."""
        return dict(self._failures)

    def append_streamed(
        self,
        start_ns: int,
        intended_ns: int,
        sent_ns: int,
        response: StreamedResponse,
        step: int,
        sequence: int,
    ) -> None:
        """The row of a request that may have had several responses, and when each came."""
        status = SUCCESS if response.status == self.success else self.count_failure(response)
        times = response.arrivals
        if response.units:
            self._arrivals.add_units(len(self.records), response.units)
        self._arrivals.add(times)
        first_ns, end_ns = response.first_byte_ns, response.end_ns
        self.append(start_ns, intended_ns, sent_ns, first_ns, end_ns, status, len(times), step, sequence)

    def compare(self, row: int, step: int, response: Any) -> None:
        """Make a row a failure whose response, though successful, is not what was expected."""
        if self.check is None or response.status != self.success:
            return
        wrong = self.check(step, response)
        if wrong:
            self.records.amend(row, MISMATCH)
            self.count_local_failure(MISMATCH, wrong)

    def append_refused(self, error: WireError, due_ns: int = 0) -> None:
        """The row of a request that found no connection: it was due then, or now, and never sent."""
        now_ns = perf_counter_ns()
        self.count_local_failure(LOST, str(error))
        self.append(now_ns, due_ns or now_ns, now_ns, now_ns, now_ns, LOST, 0)

    def count_failure(self, response: Any) -> int:
        """Count an unsuccessful response; returns its status."""
        self.failed += 1
        status = int(response.status)
        if status not in self._failures:
            self._failures[status] = self._client.failure(response)
        return status

    def count_local_failure(self, status: int, message: str) -> None:
        """Count a request that has no response."""
        self.failed += 1
        self._failures.setdefault(status, Failure(_CODES.get(status, "incomplete"), message))
