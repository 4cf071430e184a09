"""State of a supervisor, written to Ray's key-value store after each change, so that a restart resumes it."""

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

from tpx.cluster.spec import ClusterSpec, from_plain
from tpx.protocol.json_values import JsonObject

EVENTS_KEPT = 50
SUPERVISOR = "supervisor"


def actor_name(cluster: str, member: str) -> str:
    """Return the name in Ray of a member of a cluster: the supervisor, a replica or a balancer."""
    return f"{cluster}/{member}"


@dataclass(slots=True, kw_only=True)
class ReplicaRecord:
    """A replica of the cluster as known to its supervisor."""

    name: str
    release: int
    draining: bool = False


@dataclass(slots=True, kw_only=True)
class Update:
    """A rolling update: `to_release` replaces `from_release`, which is restored if the update fails."""

    from_release: int
    to_release: int
    rolling_back: bool = False


@dataclass(slots=True, kw_only=True)
class ClusterState:
    """State that outlives the supervisor's process."""

    releases: dict[int, JsonObject]
    """Specs by release number; replicas of one release are identical."""
    release: int = 1
    desired: int = 0
    number: int = 0
    """Number of replicas ever created; names are never reused."""
    members: list[ReplicaRecord] = field(default_factory=list)
    update: Update | None = None
    events: "deque[str]" = field(default_factory=lambda: deque(maxlen=EVENTS_KEPT))

    @property
    def spec(self) -> ClusterSpec:
        """Spec of the current release."""
        return from_plain(self.releases[self.release])

    @property
    def active(self) -> list[ReplicaRecord]:
        """Members that are not draining."""
        return [member for member in self.members if not member.draining]

    @property
    def outdated(self) -> list[ReplicaRecord]:
        """Active members of a release other than the current one."""
        return [member for member in self.active if member.release != self.release]

    def tell(self, event: str) -> None:
        """Record an event with the time of day (UTC)."""
        self.events.append(f"{datetime.now(UTC):%H:%M:%S} {event}")

    def add_release(self, spec: ClusterSpec) -> None:
        """Make a spec the current release, and drop releases no longer in use."""
        self.release = max(self.releases) + 1
        self.releases[self.release] = spec.plain()
        used: set[int] = {self.release, *(member.release for member in self.members)}
        used |= {self.update.from_release, self.update.to_release} if self.update else set()
        self.releases = {number: plain for number, plain in self.releases.items() if number in used}

    def dump(self) -> bytes:
        """Return the state as JSON; `load` reads it."""
        return json.dumps({**asdict(self), "events": list(self.events)}, default=_encode_value).encode()


def _encode_value(value: object) -> object:
    if isinstance(value, Sequence | set):
        return list(value)
    return str(value)


def load(text: bytes) -> ClusterState:
    """Read the output of `ClusterState.dump`."""
    plain = json.loads(text)
    return ClusterState(
        releases={int(number): spec for number, spec in plain["releases"].items()},
        release=plain["release"],
        desired=plain["desired"],
        number=plain["number"],
        members=[ReplicaRecord(**member) for member in plain["members"]],
        update=Update(**plain["update"]) if plain["update"] else None,
        events=deque(plain["events"], maxlen=EVENTS_KEPT),
    )
