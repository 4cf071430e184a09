"""The gRPC endpoint: every method of GRPCInferenceService, health and reflection."""

from functools import partial

from tpx.protocol.grpc.metadata import CallHead
from tpx.protocol.grpc.server_call import Method
from tpx.protocol.grpc.status import Status
from tpx.serving.dataplane import DataPlane
from tpx.serving.frontends.access import Key, Restrictions
from tpx.serving.frontends.forwarding import HeaderForwarding
from tpx.serving.frontends.grpc_control import GrpcControlPlane
from tpx.serving.frontends.grpc_health import GrpcHealth
from tpx.serving.frontends.grpc_infer import GrpcInference
from tpx.serving.frontends.grpc_reflection import GrpcReflection
from tpx.serving.frontends.grpc_stream import GrpcStreams


class GrpcFrontend:
    """Makes the methods."""

    def __init__(
        self,
        plane: DataPlane,
        *,
        restrictions: Restrictions | None = None,
        forwarding: HeaderForwarding | None = None,
    ) -> None:
        self._restrictions = restrictions
        inference = GrpcInference(plane, forwarding)
        extensions = (
            inference,
            GrpcStreams(plane, inference),
            GrpcHealth(plane),
            GrpcControlPlane(plane),
        )
        self._rpcs = [rpc for extension in extensions for rpc in extension.rpcs()]
        self._rpcs += GrpcReflection(self._rpcs).rpcs()

    def methods(self) -> list[Method]:
        """Every method; those of a restricted category look at a call's metadata before anything else."""
        if self._restrictions is not None:
            for rpc in self._rpcs:
                key = self._restrictions.key(rpc.category)
                if key is not None:
                    rpc.method.restrict(partial(_admit, key))
        return [rpc.method for rpc in self._rpcs]


def _admit(key: Key, head: CallHead) -> tuple[Status, str] | None:
    """Why a call is not served, if it does not show the key."""
    name = f"triton-grpc-protocol-{key.name}"
    shown = head.metadata.get(name.lower())
    if key.fits(shown.encode("latin-1") if isinstance(shown, str) else shown):
        return None
    return Status.UNAVAILABLE, f"This protocol is restricted, expecting header '{name}'"
