"""A server that runs already, here or elsewhere: nothing but its models is touched."""

import asyncio

from tpx.analyzer.runners.control import ModelControl
from tpx.analyzer.runners.hosts import Addresses, Launch
from tpx.errors import ServerLost, UsageError

POLL_S = 0.5


class RemoteServer:
    """Implements Running for a server of somebody else."""

    pid = None

    def __init__(self, addresses: Addresses) -> None:
        self.addresses = addresses

    def log_tail(self) -> tuple[str, ...]:
        return ()

    async def died(self) -> str:
        """Never returns: that it is gone shows when it is asked."""
        never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        return await never

    async def stop(self, patience_s: float = 0) -> None:
        """It goes on."""


class RemoteHost:
    """Implements Host: there is one server, and it is not started here."""

    restarts = False

    def __init__(self, addresses: Addresses, control: ModelControl, address: str) -> None:
        """`address` is the one of `addresses` that is used, for what is said about it."""
        self._addresses = addresses
        self._control = control
        self._address = address
        self._met = False

    async def start(self, launch: Launch, timeout_s: float) -> RemoteServer:
        """The server once it answers. Raises UsageError where it never did, ServerLost where it has."""
        if launch.flags or launch.environment:
            raise UsageError(
                "triton_server_flags and triton_server_environment are for a server that is started here; "
                "with --triton-launch-mode remote, start the server with them"
            )
        loop = asyncio.get_running_loop()
        ends = loop.time() + timeout_s
        while not await self._control.live():
            if loop.time() > ends:
                raise self._absent(timeout_s)
            await asyncio.sleep(POLL_S)
        self._met = True
        return RemoteServer(self._addresses)

    def close(self) -> None:
        """Nothing of it is here."""

    def _absent(self, timeout_s: float) -> ServerLost | UsageError:
        if self._met:
            return ServerLost(
                f"the server at {self._address} does not answer any more (for {timeout_s:g} s); when it "
                "does again, --resume goes on from here"
            )
        return UsageError(
            f"no server answers at {self._address} (tried for {timeout_s:g} s): start it, or say where it is "
            "with --triton-http-endpoint and --triton-grpc-endpoint; --client-protocol chooses between them"
        )
