"""Control loop of a cluster: places, replaces, scales and routes to replicas until the state matches
the spec.

The supervisor is a detached actor that Ray restarts if it dies. Replicas and proxies are detached
actors too, found again by name, so they keep serving without a supervisor.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

import ray
from ray.actor import ActorHandle as Actor
from ray.exceptions import ActorUnavailableError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tpx.cluster.balancer import ReplicaRoute
from tpx.cluster.canary import Canary
from tpx.cluster.policy import Autoscaler
from tpx.cluster.proxy import Proxy
from tpx.cluster.replica import STOP_PATIENCE_S, Replica, ReplicaStatus
from tpx.cluster.spec import ClusterSpec, from_plain
from tpx.cluster.state import ClusterState, ReplicaRecord, Update, actor_name, load
from tpx.protocol.json_values import JsonObject
from tpx.ray_driver import NAMESPACE, drop_value, first_line, free_resources, keep_value, read_value

TICK_S = 0.5
ASK_S = 2.0
UNPLACED_S = 5.0
"""Time after which a replica without a node may be reported as waiting for resources."""
DETECTED_S = 30.0
"""Time in which Ray detects that a node is gone."""
BROKEN_CALLS = 5
"""Calls in a row that find no connection to a replica before it is lost. One of the next calls connects again
after a partition, none after the end of a node.
"""
PLACING, LOST = "placing", "lost"


def key_of(cluster: str) -> bytes:
    """Return the key of a cluster's state in Ray's key-value store."""
    return f"tpx/cluster/{cluster}".encode()


class ReplicaActor(Replica):
    """A replica on the node chosen by Ray."""

    def __init__(self, replica: str, plain: JsonObject) -> None:
        super().__init__(replica, plain, ray.util.get_node_ip_address())


class _Watched:
    """A member's actor and its last reported status."""

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.created_s = self.ready_s = time.monotonic()
        """When it was created, and when it was last ready; until then, when it was created."""
        self.status = ReplicaStatus(state=PLACING, host="")
        self.asked: Actor = None
        self.broken_calls = 0
        self.drain_until_s = 0.0
        self.stopping: Actor = None


class ClusterSupervisor:
    """Supervisor of one cluster. `tpx cluster` calls its methods."""

    def __init__(self, cluster: str, plain: JsonObject) -> None:
        self._cluster = cluster
        self._lock = threading.RLock()
        found = read_value(key_of(cluster))
        if found:
            self._state = load(found)
            self._state.tell("supervisor started again")
        else:
            spec = from_plain(plain)
            self._state = ClusterState(releases={1: dict(plain)}, desired=_choose_first_count(spec))
        self._watched: dict[str, _Watched] = {}
        self._lost_s: dict[str, float] = {}
        """When a replica of a node was last lost, by address."""
        self._proxies: JsonObject = {}
        self._proxy_calls: dict[str, tuple[Actor, Actor]] = {}
        self._proxy_status: dict[str, dict[str, object]] = {}
        self._scaler = Autoscaler(self._state.spec)
        self._canary: Canary | None = None
        self._compared = False
        self._closed = False
        self._fault = ""
        self._find_members()
        self._shown = self._encode_status(time.monotonic())
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def status(self) -> JsonObject:
        """Return everything that `tpx cluster status` shows, as of the last poll of the replicas."""
        return self._shown

    def scale(self, count: int) -> str:
        """Set the desired number of replicas. Return an error, or an empty string."""
        with self._lock:
            low, high = self._state.spec.replica.bounds
            if low == high:  # no autoscaling: change the number in the spec
                plain = {
                    **self._state.releases[self._state.release],
                    "replicas": count,
                    "min_replicas": count,
                }
                plain.pop("max_replicas", None)
                self._state.releases[self._state.release] = plain
                self._scaler = Autoscaler(self._state.spec)
            elif not low <= count <= high:
                return f"{count} is not between --min-replicas {low} and --max-replicas {high}"
            self._state.desired = count
            self._state.tell(f"scaled to {count} by hand")
            return ""

    def update(self, plain: JsonObject) -> str:
        """Change the spec; replicas are replaced one by one if theirs differ. Return an error, or an
        empty string.
        """
        with self._lock:
            state, spec = self._state, from_plain(plain)
            if state.update is not None:
                return "an update is under way; wait until `tpx cluster status` shows its end"
            before = state.spec
            if spec.runs_as(before):
                state.releases[state.release] = dict(plain)
                state.desired = min(max(state.desired, spec.replica.bounds[0]), spec.replica.bounds[1])
                state.tell("options changed; no replica needs to be replaced")
            else:
                was = state.release
                state.add_release(spec)
                state.update = Update(from_release=was, to_release=state.release)
                state.tell(f"update from release {was} to {state.release} begins")
            self._scaler = Autoscaler(state.spec)
            self._canary = None
            self._shown = self._encode_status(time.monotonic())
            return ""

    def down(self) -> None:
        """Stop all proxies and replicas after their requests in flight, and delete the cluster's state."""
        with self._lock:
            self._closed = True
        self._thread.join(10 * ASK_S)
        replicas = [watched.actor for watched in self._watched.values()]
        # HAProxy first: its requests in flight need the replicas, and HAProxy 2.6.12 crashes if replicas
        # close their connections while it ends
        for actors in (list(self._proxies.values()), replicas):
            stops = [actor.stop.remote() for actor in actors]
            ray.wait(stops, num_returns=len(stops), timeout=STOP_PATIENCE_S + ASK_S) if stops else None
            for actor in actors:
                ray.kill(actor)
        drop_value(key_of(self._cluster))

    def _loop(self) -> None:
        while not self._closed:
            began_s = time.monotonic()
            try:
                self._reconcile(began_s)
            except RayError as exc:  # the head node may be unreachable for a moment: keep looping
                self._state.tell(f"Ray: {first_line(exc)}")
            time.sleep(max(0.05, TICK_S - (time.monotonic() - began_s)))

    def _reconcile(self, now_s: float) -> None:
        self._poll_replicas()
        with self._lock:
            if self._closed:
                return
            before = self._state.dump()
            self._remove_lost()
            self._scale(now_s)
            self._advance_update(now_s)
            self._remove_drained(now_s)
            if self._state.dump() != before:
                keep_value(key_of(self._cluster), self._state.dump())
            routes = self._list_routes()
        self._publish_routes(routes)
        with self._lock:
            self._shown = self._encode_status(now_s)

    def _encode_status(self, now_s: float) -> JsonObject:
        """Return the status as JSON."""
        state = self._state
        rows = []
        for member in state.members:
            watched = self._watched[member.name]
            shown = asdict(replace(watched.status, reading={}))
            del shown["reading"]
            if member.draining:
                shown["state"] = "draining"
            if watched.status.state == PLACING and now_s - watched.created_s > UNPLACED_S and self._is_full():
                shown["message"] = f"no node has {_format_resources(state.spec)} free"
            rows.append({"name": member.name, "release": member.release, **shown})
        return {
            "name": self._cluster,
            "release": state.release,
            "desired": state.desired,
            "bounds": state.spec.replica.bounds,
            "update": asdict(state.update) if state.update else None,
            "replicas": rows,
            "balancers": [
                {"node": node, **self._proxy_status.get(node, {"running": False})}
                for node in state.spec.traffic.balancer
            ],
            "ports": {"http": state.spec.traffic.http_port, "grpc": state.spec.traffic.grpc_port},
            "fault": self._fault,
            "events": list(state.events),
            "spec": state.spec.plain(),
        }

    def _is_full(self) -> bool:
        """Return True if no node has the resources for one more replica."""
        return not any(self._has_room(free) for free in free_resources().values())

    def _has_room(self, free: Mapping[str, float]) -> bool:
        """Return True if a node has the free resources for one more replica."""
        return all(free.get(name, 0) >= amount for name, amount in self._state.spec.replica.resources.items())

    def _find_members(self) -> None:
        """Find the replicas of the previous supervisor process."""
        for member in list(self._state.members):
            try:
                actor = ray.get_actor(actor_name(self._cluster, member.name), namespace=NAMESPACE)
            except ValueError:
                self._state.members.remove(member)
                continue
            self._watched[member.name] = _Watched(actor)

    def _poll_replicas(self) -> None:
        """Poll the status of all replicas; one that does not answer in time keeps its last status."""
        for watched in self._watched.values():
            watched.asked = watched.asked or watched.actor.status.remote(self._canary is not None)
        calls = [watched.asked for watched in self._watched.values()]
        if calls:
            ray.wait(calls, num_returns=len(calls), timeout=ASK_S)
        for watched in self._watched.values():
            done, _ = ray.wait([watched.asked], timeout=0)
            if not done:
                continue
            asked, watched.asked = watched.asked, None
            try:
                watched.status = ray.get(asked)
                watched.broken_calls = 0
                if watched.status.state == "ready":
                    watched.ready_s = time.monotonic()
            except RayError as exc:
                watched.broken_calls += 1
                if not isinstance(exc, ActorUnavailableError) or watched.broken_calls == BROKEN_CALLS:
                    host, why = watched.status.host, first_line(exc)
                    watched.status = ReplicaStatus(state=LOST, host=host, message=why)

    def _remove_lost(self) -> None:
        """Remove members whose actor is gone because its process or node died."""
        for member in list(self._state.members):
            watched = self._watched.get(member.name)
            if watched is None or watched.status.state != LOST:
                continue
            self._state.tell(f"{member.name} is gone: {watched.status.message}")
            self._lost_s[watched.status.host] = time.monotonic()
            self._remove(member)

    def _remove(self, member: ReplicaRecord) -> None:
        watched = self._watched.pop(member.name, None)
        self._state.members.remove(member)
        if watched is not None:
            ray.kill(watched.actor)

    def _list_ready(self) -> list[tuple[ReplicaRecord, _Watched]]:
        found = [(member, self._watched[member.name]) for member in self._state.active]
        return [(member, watched) for member, watched in found if watched.status.state == "ready"]

    def _scale(self, now_s: float) -> None:
        state = self._state
        samples = [watched.status.sample for _, watched in self._list_ready()]
        wanted = self._scaler.decide(state.desired, samples, now_s)
        if wanted != state.desired and state.update is None:
            state.tell(f"scaled from {state.desired} to {wanted} by load")
            state.desired = wanted
        for _ in range(state.desired - len(state.active)):
            self._create_replica()
        if state.update is None:
            for member in state.active[state.desired :]:
                self._start_draining(member, now_s)

    def _create_replica(self) -> None:
        state = self._state
        state.number += 1
        member = ReplicaRecord(name=f"replica-{state.number}", release=state.release)
        spec = state.spec.replica
        remote = ray.remote(ReplicaActor).options(
            name=actor_name(self._cluster, member.name),
            namespace=NAMESPACE,
            lifetime="detached",
            num_cpus=spec.cpus,
            num_gpus=spec.gpus,
            memory=spec.memory or None,
            scheduling_strategy=self._choose_place(),
            max_restarts=0,
            get_if_exists=True,
        )
        actor = remote.remote(member.name, state.releases[state.release])
        actor.start.remote()
        state.members.append(member)
        self._watched[member.name] = _Watched(actor)

    def _choose_place(self) -> str | NodeAffinitySchedulingStrategy:
        """Return Ray's own choice, or a node with room while Ray may not know that another one is gone."""
        now_s = time.monotonic()
        avoided = {host for host, lost_s in self._lost_s.items() if now_s - lost_s < DETECTED_S}
        places = [
            node["NodeID"]
            for node in ray.nodes()
            if node["Alive"]
            and node["NodeManagerAddress"] not in avoided
            and self._has_room(free_resources().get(node["NodeID"], {}))
        ]
        if not avoided or not places:
            return "SPREAD"
        return NodeAffinitySchedulingStrategy(places[self._state.number % len(places)], soft=True)

    def _start_draining(self, member: ReplicaRecord, now_s: float) -> None:
        member.draining = True
        self._watched[member.name].drain_until_s = now_s + self._state.spec.server.drain_secs
        self._state.tell(f"{member.name} is drained")

    def _remove_drained(self, now_s: float) -> None:
        """Stop and remove members that have been draining long enough."""
        for member in [member for member in self._state.members if member.draining]:
            watched = self._watched[member.name]
            if watched.status.state == PLACING:  # never placed on a node
                self._remove(member)
            elif watched.stopping is None and now_s >= watched.drain_until_s:
                watched.stopping = watched.actor.stop.remote()
                watched.drain_until_s = now_s + STOP_PATIENCE_S + ASK_S
            elif watched.stopping is not None:
                done, _ = ray.wait([watched.stopping], timeout=0)
                if done or now_s >= watched.drain_until_s:
                    self._remove(member)

    def _advance_update(self, now_s: float) -> None:
        """Advance a rolling update by one replica, once all replicas of the new release are ready."""
        state = self._state
        update = state.update
        if update is None:
            return
        fresh = [member for member in state.active if member.release == state.release]
        watched = [self._watched[member.name] for member in fresh]
        fault = self._find_update_fault(now_s, watched)
        if fault and not update.rolling_back:
            self._roll_back(update, fault)
            return
        if not state.outdated:
            done = all(w.status.state == "ready" for w in watched)
            if done and not self._canary:
                self._end_update(update)
            return
        late = any(w.status.state == PLACING and now_s - w.created_s > UNPLACED_S for w in watched)
        if late and self._is_full():
            if len(state.active) > state.desired:  # no resources for one more: free some first
                self._start_draining(state.outdated[0], now_s)
            return
        if self._canary or not all(w.status.state == "ready" for w in watched):
            return
        if len(state.active) > state.desired:
            self._start_draining(state.outdated[0], now_s)
        elif len(fresh) < state.desired:
            self._create_replica()

    def _find_update_fault(self, now_s: float, fresh: Sequence[_Watched]) -> str:
        """Return why the new release must be rolled back, or an empty string."""
        for watched in fresh:
            if watched.status.state == "failed":
                return watched.status.message
        timeout_s = self._state.spec.server.ready_timeout_secs
        if any(now_s - watched.ready_s > timeout_s for watched in fresh):
            return f"a replica has not been ready for {timeout_s:g} s"
        return self._find_canary_fault(now_s, fresh)

    def _find_canary_fault(self, now_s: float, fresh: Sequence[_Watched]) -> str:
        """Compare the first new replica with the old ones. Return why to roll back, or an empty string."""
        state = self._state
        if self._canary is None:
            first = len(fresh) == 1 and fresh[0].status.state == "ready" and bool(state.outdated)
            if first and not self._compared and state.spec.rollout.canary_secs:
                self._canary = Canary(state.spec.rollout, now_s)
            return ""
        if not fresh:  # its node is gone: the next new replica is compared
            self._canary = None
            return ""
        status = fresh[0].status
        if status.restarts:
            return f"its server ended while it was compared: {status.message}"
        old = {m.name: w.status.reading for m, w in self._list_ready() if m.release != state.release}
        self._canary.observe(now_s, status.reading, old)
        fault = self._canary.fault(now_s)
        if fault or self._canary.ended:
            state.tell(f"canary compared: {self._canary.summary}")
            self._canary, self._compared = None, True
        return fault

    def _roll_back(self, update: Update, fault: str) -> None:
        state = self._state
        state.tell(f"release {update.to_release} is rolled back: {fault}")
        self._fault = f"release {update.to_release} was rolled back: {fault}"
        state.release = update.from_release
        update.rolling_back = True
        self._canary, self._compared = None, True
        self._scaler = Autoscaler(state.spec)
        for member in state.outdated:
            if self._watched[member.name].status.state != "ready":
                self._start_draining(member, time.monotonic())

    def _end_update(self, update: Update) -> None:
        state = self._state
        state.tell(f"every replica runs release {state.release}")
        if not update.rolling_back:
            self._fault = ""
        state.update = None
        self._compared = False

    def _list_routes(self) -> list[ReplicaRoute]:
        """Return the replicas to route to: all that have been ready and are still reachable. Health
        checks do the rest.
        """
        return [
            ReplicaRoute(
                replica=f"{member.name}/{status.restarts}",
                host=status.host,
                http_port=status.http_port,
                grpc_port=status.grpc_port,
                draining=member.draining,
            )
            for member in self._state.members
            if (status := self._watched[member.name].status).served
            and status.http_port
            and status.state in ("ready", "unready")
        ]

    def _publish_routes(self, routes: Sequence[ReplicaRoute]) -> None:
        """Send the routes to every proxy, and start missing proxies."""
        for node in self._state.spec.traffic.balancer:
            if node not in self._proxies:
                self._proxy_status[node] = {"running": False, "message": self._start_proxy(node)}
        asked = {
            node: self._proxy_calls.get(node) or (proxy.route.remote(routes), proxy.status.remote())
            for node, proxy in self._proxies.items()
        }
        answers = [answer for pair in asked.values() for answer in pair]
        done = ray.wait(answers, num_returns=len(answers), timeout=ASK_S)[0] if answers else []
        self._proxy_calls = {node: pair for node, pair in asked.items() if not set(pair) <= set(done)}
        for node in asked.keys() - self._proxy_calls.keys():
            try:
                self._proxy_status[node] = ray.get(asked[node][1])
            except RayError as exc:
                self._state.tell(f"balancer on {node} is gone: {first_line(exc)}")
                del self._proxies[node]

    def _start_proxy(self, node: str) -> str:
        """Start the proxy of a node. Return an error, or an empty string."""
        ids = {each["NodeManagerAddress"]: each["NodeID"] for each in ray.nodes() if each["Alive"]}
        if node not in ids:
            return f"Ray has no node with this address (has: {', '.join(sorted(ids))})"
        remote = ray.remote(Proxy).options(
            name=actor_name(self._cluster, f"balancer-{node}"),
            namespace=NAMESPACE,
            lifetime="detached",
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(ids[node], soft=False),
            get_if_exists=True,
        )
        proxy = self._proxies[node] = remote.remote(self._state.spec.plain())
        return str(ray.get(proxy.start.remote(), timeout=30))


def _choose_first_count(spec: ClusterSpec) -> int:
    low, high = spec.replica.bounds
    return min(max(spec.replica.replicas, low), high)


def _format_resources(spec: ClusterSpec) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in spec.replica.resources.items()) or "a place"
