"""A frontend process of a server in a test's process, with the configuration and spec from standard input."""

import asyncio
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

import uvloop

from tests.e2e.child import environment
from tpx.cli.logs import configure
from tpx.protocol.handshakes import bound_sockets
from tpx.serving.endpoints import BoundEndpoint
from tpx.serving.logs import LogControl
from tpx.serving.options import ServeConfig
from tpx.serving.processes.frontend import FrontendProcess, FrontendSpec, end_with
from tpx.serving.processes.supervisor import EngineSpec


class Frontends:
    """The frontends of one engine, and what both know of each other."""

    def __init__(self, config: ServeConfig, count: int) -> None:
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind("")
        self._listening.listen(2 * count)
        self._reads, self._writes = os.pipe()
        services = [service for service in config.services if service.flag != "metrics"]
        ports = {service.flag: service.port for service in services}
        self._processes: list[subprocess.Popen[bytes]] = []
        for index in range(count):
            sockets: dict[str, Sequence[socket.socket]] = {}
            for service in services:
                flag = service.flag
                sockets[flag] = bound_sockets(service.address, ports[flag], reuse_port=True)
                ports[flag] = sockets[flag][0].getsockname()[1]
            self._start(config, index, count, sockets)
        bound = [
            BoundEndpoint(service=each.name, address=each.address, port=ports[each.flag]) for each in services
        ]
        self.spec = EngineSpec(
            listening=self._listening, count=count, bound=bound, metrics=(), started=self._writes
        )

    def _start(
        self, config: ServeConfig, index: int, count: int, sockets: Mapping[str, Sequence[socket.socket]]
    ) -> None:
        numbers = {name: [sock.fileno() for sock in group] for name, group in sockets.items()}
        passed = [self._writes, *(number for group in numbers.values() for number in group)]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.serving.live_frontend"],
            stdin=subprocess.PIPE,
            pass_fds=passed,
            env=environment(),
        )
        assert process.stdin is not None
        spec = config, index, count, self._listening.getsockname(), numbers, self._writes, os.getpid()
        with process.stdin as stdin:
            pickle.dump(spec, stdin)
        self._processes.append(process)
        for group in sockets.values():
            for sock in group:
                sock.close()

    def close(self) -> None:
        """Wait for the frontends, which the engine has ended."""
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._listening.close()
        os.close(self._reads)
        os.close(self._writes)


def main() -> None:
    """Serve until the engine ends it."""
    config, index, count, engine, numbers, started, parent = pickle.load(sys.stdin.buffer)
    end_with(parent)
    sockets = {name: [socket.socket(fileno=number) for number in group] for name, group in numbers.items()}
    spec = FrontendSpec(index=index, count=count, engine=engine, sockets=sockets, started=started)
    logs = LogControl(config.logging.settings)
    configure(logs)

    async def run() -> None:
        await FrontendProcess(config, logs, spec).run()

    with asyncio.Runner(loop_factory=uvloop.Loop) as runner:
        runner.run(run())


if __name__ == "__main__":
    main()
