"""The gRPC endpoint: all methods of GRPCInferenceService, health and reflection."""

from collections.abc import Sequence
from functools import partial
from typing import Protocol, cast

from tpx.protocol.grpc.metadata import CallHead
from tpx.protocol.grpc.server_call import Method
from tpx.protocol.grpc.status import Status
from tpx.serving.dataplane import DataPlane
from tpx.serving.frontends.access import Key, Restrictions
from tpx.serving.frontends.forwarding import HeaderForwarding
from tpx.serving.frontends.grpc_control import GrpcControlPlane
from tpx.serving.frontends.grpc_health import GrpcHealth
from tpx.serving.frontends.grpc_infer import GrpcInference
from tpx.serving.frontends.grpc_reflection import reflection_rpcs
from tpx.serving.frontends.grpc_stream import stream_rpc
from tpx.serving.frontends.grpc_verbs import Rpc
from tpx.serving.inference_plane import InferencePlane


class GrpcRelay(Protocol):
    """Forwards calls to the process that can answer them."""

    def relayed_rpcs(self, rpcs: Sequence[Rpc]) -> list[Rpc]:
        """Return methods that forward their calls."""


class GrpcFrontend:
    """Builds the gRPC methods."""

    def __init__(
        self,
        plane: DataPlane | InferencePlane,
        *,
        restrictions: Restrictions | None = None,
        forwarding: HeaderForwarding | None = None,
        relay: GrpcRelay | None = None,
    ) -> None:
        """With a `relay`, another process answers everything except inference, and `plane` only infers."""
        self._restrictions = restrictions
        every = cast("DataPlane", plane)  # with a relay only their method list is used
        inference = GrpcInference(plane, forwarding)
        others = [*GrpcHealth(every).rpcs(), *GrpcControlPlane(every).rpcs()]
        self._rpcs = [
            *inference.rpcs(),
            stream_rpc(plane, inference),
            *(others if relay is None else relay.relayed_rpcs(others)),
        ]
        self._rpcs += reflection_rpcs(self._rpcs)

    def methods(self) -> list[Method]:
        """Return all methods. Those of a restricted category check a call's metadata first."""
        for rpc in self._rpcs:
            key = (self._restrictions or {}).get(rpc.category)
            if key is not None:
                rpc.method.guard = partial(_check_key, key)
        return [rpc.method for rpc in self._rpcs]


def _check_key(key: Key, head: CallHead) -> tuple[Status, str] | None:
    """Return the status for a call without the key, or None if the call is admitted."""
    name = f"triton-grpc-protocol-{key.name}"
    shown = head.metadata.get(name.lower())
    if key.fits(shown.encode("latin-1") if isinstance(shown, str) else shown):
        return None
    return Status.UNAVAILABLE, f"This protocol is restricted, expecting header '{name}'"
