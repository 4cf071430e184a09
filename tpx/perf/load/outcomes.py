"""What became of a load's requests: their rows, how many failed, and the first failure of each kind."""

from collections.abc import Mapping
from typing import Any

from tpx.perf.clients.base import LOST, Client, Failure
from tpx.perf.records import Records


class Outcomes:
    """Shared by the slots of one load."""

    __slots__ = ("_client", "_failures", "append", "failed", "records", "success")

    def __init__(self, client: Client, records: Records | None = None) -> None:
        self.records = Records() if records is None else records
        self.append = self.records.append
        self.success = client.success
        self.failed = 0
        self._client = client
        self._failures: dict[int, Failure] = {}

    def failures(self) -> Mapping[int, Failure]:
        """The first failure of each status that occurred."""
        return dict(self._failures)

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
        code = "connection lost" if status == LOST else "timeout"
        self._failures.setdefault(status, Failure(code, message))
