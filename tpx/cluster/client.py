"""Client side of `tpx cluster`: calls to Ray and to a supervisor."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpx.cluster.spec import ClusterSpec
from tpx.cluster.state import SUPERVISOR, actor_name
from tpx.errors import NotFound, NotReady, UsageError
from tpx.protocol.json_values import JsonObject, JsonValue
from tpx.ray_driver import NAMESPACE, first_line

if TYPE_CHECKING:
    from ray.actor import ActorHandle

ANSWER_S = 60.0
"""Deadline of a call: within it, Ray restarts a supervisor."""
READY_POLL_S = 0.25
PLACE_S = 60.0
"""Time for Ray to start an actor, even on a busy machine."""


class Cluster:
    """Handle of one cluster's supervisor; create it within `ray_driver.connected`."""

    def __init__(self, name: str) -> None:
        """Find the supervisor. Raises NotFound if there is no cluster of this name."""
        import ray

        try:
            self._actor = ray.get_actor(actor_name(name, SUPERVISOR), namespace=NAMESPACE)
        except ValueError:
            raise NotFound(
                f"no cluster '{name}' on this Ray; `tpx cluster up --name {name}` starts one"
            ) from None
        self.name = name

    def status(self) -> JsonObject:
        """Return the result of `ClusterSupervisor.status`."""
        found: JsonObject = self._call_supervisor("status")
        return found

    def update(self, spec: ClusterSpec) -> None:
        """Start a rolling update. Raises UsageError if one is in progress."""
        self._raise_fault(self._call_supervisor("update", spec.plain()))

    def scale(self, count: int) -> None:
        """Set the number of replicas. Raises UsageError if it is out of bounds."""
        self._raise_fault(self._call_supervisor("scale", count))

    def log(self, replica: str, lines: int) -> str:
        """Return the last lines of a replica's log. Raises NotFound for an unknown replica, NotReady if its
        node does not answer.
        """
        import ray

        names = [row["name"] for row in self.status()["replicas"]]
        if replica not in names:
            raise NotFound(f"no replica '{replica}' (has: {', '.join(names) or 'none'})")
        try:
            actor = ray.get_actor(actor_name(self.name, replica), namespace=NAMESPACE)
        except ValueError:
            raise NotFound(f"{replica} of '{self.name}' was removed just now") from None
        return str(_call(actor, f"{replica} of '{self.name}'", "log", lines))

    def down(self) -> None:
        """Stop everything in the cluster, the supervisor last."""
        import ray

        self._call_supervisor("down")
        ray.kill(self._actor)

    def _call_supervisor(self, method: str, *words: object) -> JsonValue:
        return _call(self._actor, f"the supervisor of '{self.name}'", method, *words)

    @staticmethod
    def _raise_fault(fault: str) -> None:
        if fault:
            raise UsageError(fault)


def _call(actor: "ActorHandle", called: str, method: str, *words: object) -> JsonValue:
    """Call a method of an actor; retry until the deadline while Ray restarts or cannot reach it.

    Raises NotReady if it has not answered by then, or is gone.
    """
    import ray
    from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError

    deadline_s = time.monotonic() + ANSWER_S
    while True:
        try:
            return ray.get(getattr(actor, method).remote(*words), timeout=deadline_s - time.monotonic())
        except ActorDiedError as exc:
            raise NotReady(f"{called} is gone: {first_line(exc)}") from exc
        except ActorUnavailableError as exc:
            fault = exc
        except GetTimeoutError:
            fault = None
        if time.monotonic() + READY_POLL_S > deadline_s:
            why = f": {first_line(fault)}" if fault else ""
            raise NotReady(f"{called} has not answered for {ANSWER_S:g} s{why}")
        time.sleep(READY_POLL_S)


def up(spec: ClusterSpec) -> Iterator[JsonObject]:
    """Start a cluster and yield its status until the desired replicas are ready.

    Raises UsageError, after cleaning up, if the cluster exists, the nodes are too small, a balancer
    cannot start, or a replica fails before it was ready.
    """
    import ray
    from ray.exceptions import RayError

    from tpx.cluster.supervisor import ClusterSupervisor

    name = spec.address.name
    _require_resources(spec, ray.nodes())
    if _exists(name):
        raise UsageError(
            f"cluster '{name}' exists; `tpx cluster update` changes it, `tpx cluster down` ends it"
        )
    remote = ray.remote(ClusterSupervisor).options(
        name=actor_name(name, SUPERVISOR),
        lifetime="detached",
        num_cpus=0,
        resources={"node:__internal_head__": 0.001},  # without the head node, there is no Ray either
        max_restarts=-1,
        max_task_retries=2,
        max_concurrency=8,
    )
    actor = remote.remote(name, spec.plain())
    try:
        ray.get(actor.status.remote(), timeout=PLACE_S)
    except RayError as exc:
        ray.kill(actor)
        why = first_line(exc)
        raise UsageError(
            f"Ray does not start the supervisor on the head node: {why} (see `ray status` and Ray's logs)"
        ) from exc
    cluster, is_up = Cluster(name), False
    try:
        deadline_s = time.monotonic() + spec.server.ready_timeout_secs
        while not is_up:
            status = cluster.status()
            yield status
            fault = _find_start_fault(status)
            if fault:
                raise UsageError(fault)
            is_up = _is_up(status)
            if not is_up and time.monotonic() > deadline_s:
                raise UsageError(
                    f"not ready after {spec.server.ready_timeout_secs:g} s: {_describe_unready(status)}"
                )
            time.sleep(READY_POLL_S)
    finally:
        if not is_up:
            cluster.down()


def with_balancer(spec: ClusterSpec) -> ClusterSpec:
    """Return the spec with this node as balancer if it names none."""
    import ray

    from tpx.options import build

    if spec.traffic.balancer:
        return spec
    return build(ClusterSpec, {**spec.plain(), "balancer": (ray.util.get_node_ip_address(),)})


def _exists(name: str) -> bool:
    try:
        Cluster(name)
    except NotFound:
        return False
    return True


def _is_up(status: JsonObject) -> bool:
    ready = sum(row["state"] == "ready" for row in status["replicas"])
    return ready >= status["desired"] and all(each.get("running") for each in status["balancers"])


def _find_start_fault(status: JsonObject) -> str:
    for row in status["replicas"]:
        if row["state"] == "failed":
            return f"{row['name']} on {row['host']}: {row['message']}"
        if row["state"] == "placing" and row["message"]:
            return f"{row['name']}: {row['message']}"
    for each in status["balancers"]:
        if each.get("message") and not each.get("running"):
            return f"balancer on {each['node']}: {each['message']}"
    return ""


def _describe_unready(status: JsonObject) -> str:
    return ", ".join(
        f"{row['name']} is {row['state']}" for row in status["replicas"] if row["state"] != "ready"
    )


def _require_resources(spec: ClusterSpec, nodes: list[JsonObject]) -> None:
    """Raise UsageError if the nodes can never hold the minimum number of replicas."""
    wanted, need = spec.replica.bounds[0] or 1, spec.replica.resources
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    places = (
        sum(min(int(has.get(name, 0) // amount) for name, amount in need.items()) for has in alive)
        if need
        else wanted
    )
    if places < wanted:
        required = ", ".join(f"{name} {amount:g}" for name, amount in need.items())
        raise UsageError(
            f"{wanted} replicas of {required} do not fit: {len(alive)} nodes have room for {places}"
        )
