"""What every bench is given: the peers, the models, how long to measure, and servers that are ready."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.clients.light import Exchange
from benchmarks.models import Kind, ModelStore, Served
from benchmarks.payloads import Protocol, check, expected, payload
from benchmarks.peers import Peers
from benchmarks.servers import Server, launch
from tpx.errors import MeasurementError


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One run's circumstances."""

    peers: Peers
    models: ModelStore
    work: Path
    """Directory for logs and scripts."""
    rounds: int
    seconds: int
    """How long one sample is taken."""
    match: str = ""
    """Only cells whose name contains this text."""

    def wants(self, cell: str) -> bool:
        return self.match in cell

    @staticmethod
    def leave_out(what: str, reason: MeasurementError) -> None:
        """Say that something is not measured, such as a peer."""
        print(f"  without {what}: {reason}", file=sys.stderr, flush=True)

    @contextmanager
    def servers(self, kinds: Sequence[Kind], models: Sequence[Served]) -> Iterator[dict[Kind, Server]]:
        """Start servers with these models and wait for them; one that cannot start is said and left out.

        Raises MeasurementError where that one is tpx.
        """
        with ExitStack() as running:
            started: dict[Kind, Server] = {}
            for kind in kinds:
                try:
                    repository = self.models.repository(kind, models)
                    command = launch(kind, repository, self.peers)
                    server = running.enter_context(Server(command, self.work))
                    server.wait_until_ready([served.name for served in models])
                    for served in models:
                        for _ in range(served.instances):  # what each one takes for its first is not measured
                            self.exchange(server, served, "json")
                    started[kind] = server
                except MeasurementError as exc:
                    if kind == "tpx":
                        raise
                    self.leave_out(kind, exc)
            yield started

    def exchange(self, server: Server, served: Served, protocol: Protocol) -> Exchange:
        """The model's request for this server, sent once and its answer compared with the right one."""
        request = payload(served, protocol)
        right = expected(served.model, self.models.onnx(served.model))
        size = check(request, protocol, server.port(protocol), right)
        return Exchange(server=server, protocol=protocol, payload=request, answer_bytes=size)
