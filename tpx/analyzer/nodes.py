"""Ray cluster nodes that measure trials, each with its own server and load generator.

Only idle nodes of one machine type are used: each actor reserves a whole node, or one of its GPUs. It
runs the same `TrialRunner` with a child server as a single-machine run.
"""

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tpx.analyzer.machine import MachineType
from tpx.analyzer.options import ProfileSpec
from tpx.analyzer.results.measurement import Configuration, ServerOnly, Trial
from tpx.analyzer.side_by_side import SideBySide, TrialResult
from tpx.analyzer.trial import TrialRunner
from tpx.analyzer.variants import OutputRepository
from tpx.errors import NodeLost, TpxError, UsageError
from tpx.protocol.json_values import JsonValue
from tpx.ray_driver import connected, first_line, free_resources

if TYPE_CHECKING:
    from ray.actor import ActorHandle

START_S = 60.0
CLOSE_S = 15.0

OpenTrials = Callable[[ProfileSpec, OutputRepository], TrialRunner]
Say = Callable[[str], None]


class NodeTrials:
    """The Ray actor that carries out trials on its node."""

    def __init__(self, config: ProfileSpec, open_trials: OpenTrials) -> None:
        import ray

        self._address = ray.util.get_node_ip_address()
        if config.server.ray_trial == "gpu":
            # the GPU that Ray assigned to this actor
            own = tuple(ray.get_runtime_context().get_accelerator_ids()["GPU"])
            config = replace(config, server=replace(config.server, gpus=own))
        self._models = config.models.model_repository or Path()
        self._scratch = tempfile.TemporaryDirectory(prefix="tpx-analyze-")
        self._trials = open_trials(config, OutputRepository(Path(self._scratch.name, "models"), None))

    async def machine(self) -> MachineType:
        """Return the type of this node. Raises UsageError if the node lacks the models."""
        if not self._models.is_dir():
            raise UsageError(f"--model-repository {self._models}: no such directory on node {self._address}")
        return self._trials.machine

    async def run(self, configuration: Configuration, trial: Trial) -> TrialResult:
        outcome = await self._trials.run(configuration, trial)
        return TrialResult(outcome=outcome, prepared=self._trials.prepared)

    async def default_config(self, model: str) -> dict[str, object]:
        return await self._trials.default_config(model)

    async def server_only(self, duration_s: float) -> ServerOnly | None:
        return await self._trials.server_only(duration_s)

    async def log_tail(self) -> tuple[str, ...]:
        return self._trials.log_tail()

    async def close(self) -> None:
        await self._trials.close()
        self._scratch.cleanup()


class RayNode:
    """Implements TrialNode with a Ray actor."""

    def __init__(self, name: str, actor: "ActorHandle[NodeTrials]") -> None:
        self.name = name
        self._actor = actor

    def machine(self) -> MachineType:
        """Return the node's type. Raises UsageError if it lacks the models, NodeLost if it is gone."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        try:
            found: MachineType = ray.get(self._actor.machine.remote(), timeout=START_S)
        except RayTaskError as exc:
            raise exc.cause from exc
        except RayError as exc:
            raise NodeLost(f"{self.name} does not take part: {first_line(exc)}") from exc
        return found

    async def run(self, configuration: Configuration, trial: Trial) -> TrialResult:
        found: TrialResult = await self._call_actor("run", configuration, trial)
        prepared = found.prepared and msgspec.structs.replace(found.prepared, node=self.name)
        return replace(found, prepared=prepared)

    async def default_config(self, model: str) -> dict[str, object]:
        found: dict[str, object] = await self._call_actor("default_config", model)
        return found

    async def server_only(self, duration_s: float) -> ServerOnly | None:
        found: ServerOnly | None = await self._call_actor("server_only", duration_s)
        return found

    async def log_tail(self) -> tuple[str, ...]:
        found: tuple[str, ...] = await self._call_actor("log_tail")
        return found

    async def close(self) -> None:
        """Stop the node's server and kill the actor."""
        with suppress(TpxError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._call_actor("close")
        self.release()

    def release(self) -> None:
        """Kill the actor, which releases the node."""
        import ray

        ray.kill(self._actor)

    async def _call_actor(self, method: str, *given: object) -> JsonValue:
        from ray.exceptions import RayError, RayTaskError

        try:
            return await getattr(self._actor, method).remote(*given)
        except RayTaskError as exc:
            raise exc.cause from exc
        except RayError as exc:
            raise NodeLost(first_line(exc)) from exc


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reservation:
    """A node, or one of its GPUs, that is reserved for one trial at a time."""

    name: str
    node: str
    cpus: float
    gpus: float


@contextmanager
def nodes_of(
    config: ProfileSpec, open_trials: OpenTrials, repository: OutputRepository, say: Say
) -> Iterator[SideBySide]:
    """Connect to Ray and reserve its idle nodes. Raises UsageError if none is idle."""
    with connected(config.server.ray_address):
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        started = []
        for slot in _iter_slots(config.server.ray_trial, say):
            where = NodeAffinitySchedulingStrategy(slot.node, soft=False)
            trials = ray.remote(NodeTrials).options(
                num_cpus=slot.cpus, num_gpus=slot.gpus, scheduling_strategy=where
            )
            started.append(RayNode(slot.name, trials.remote(config, open_trials)))
        if not started:
            raise UsageError(
                f"no {config.server.ray_trial} of Ray is free; `ray status` shows what uses them"
            )
        nodes, machine = _select_one_type(started, say)
        yield SideBySide(nodes, machine, repository, say)


def _select_one_type(started: Sequence[RayNode], say: Say) -> tuple[list[RayNode], MachineType]:
    """Return the largest group of nodes of one type, and that type; release the others and report them."""
    types: list[tuple[MachineType, list[RayNode]]] = []
    for node in started:
        try:
            machine = node.machine()
        except NodeLost as exc:
            say(exc.message)
            continue
        same_type = next((nodes for known, nodes in types if not machine.differences(known)), None)
        if same_type is None:
            types.append((machine, [node]))
        else:
            same_type.append(node)
    if not types:
        raise UsageError("no Ray node can run trials")
    machine, chosen = max(types, key=lambda each: len(each[1]))
    for other, nodes in types:
        if nodes is not chosen:
            names = ", ".join(node.name for node in nodes)
            say(f"{names} left out, not the machine of the others: {'; '.join(other.differences(machine))}")
            for node in nodes:
                node.release()
    names = ", ".join(node.name for node in chosen)
    return chosen, replace(machine, name=f"{len(chosen)} side by side: {names}")


def _iter_slots(what: str, say: Say) -> Iterator[_Reservation]:
    """Yield the idle nodes, or with `gpu` each GPU of an idle node."""
    import ray

    free = free_resources()
    for node in sorted(ray.nodes(), key=lambda node: str(node["NodeManagerAddress"])):
        resources, id_, address = node["Resources"], node["NodeID"], node["NodeManagerAddress"]
        cpus, gpus = resources.get("CPU", 0.0), resources.get("GPU", 0.0)
        if not node["Alive"] or not cpus or (what == "gpu" and not gpus):
            continue
        used = [
            f"{amount - free.get(id_, {}).get(kind, 0.0):g} of {amount:g} {kind}"
            for kind, amount in (("CPU", cpus), ("GPU", gpus))
            if free.get(id_, {}).get(kind, 0.0) < amount
        ]
        if used:
            say(f"{address} is left out: others use {', '.join(used)}")
        elif what == "gpu":
            for number in range(int(gpus)):
                yield _Reservation(name=f"{address} GPU {number}", node=id_, cpus=cpus / gpus, gpus=1)
        else:
            yield _Reservation(name=address, node=id_, cpus=cpus, gpus=gpus)
