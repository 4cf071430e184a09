"""Deadlines for request messages that clients have begun to send or have yet to send."""

from collections.abc import Mapping

from tpx.protocol.grpc.limits import GrpcLimits
from tpx.protocol.grpc.server_call import ServerCall
from tpx.protocol.grpc.status import Status

_SILENT_S = 2
"""Seconds without a byte after which a message's memory is reclaimed for waiting requests."""
_GIVEN_UP_AT_ONCE = 500  # calls ended per second, to keep the event loop responsive


class _Awaited:
    """Incomplete message: bytes received so far, and the ticks of its start and of its last progress."""

    __slots__ = ("began", "progress", "since")

    def __init__(self, progress: tuple[int, ...], tick: int) -> None:
        self.progress = progress
        self.began = self.since = tick

    @property
    def received(self) -> int:
        """Bytes received, without the prefix."""
        return self.progress[1] if self.progress else 0


class MessageDeadlines:
    """Ends the calls of one connection whose request message stalls, never starts, or takes too long."""

    __slots__ = ("_awaited", "_limits")

    def __init__(self, limits: GrpcLimits) -> None:
        self._limits = limits
        self._awaited: dict[int, _Awaited] = {}  # by stream ID

    def look(self, calls: Mapping[int, ServerCall], tick: int) -> None:
        """Record the progress of every message and end overdue calls. Must be called once per second."""
        before, self._awaited = self._awaited, {}
        given_up = 0
        for call in list(calls.values()):
            progress = call.awaited
            if progress is None:
                continue
            seen = before.get(call.id)
            if seen is None or seen.progress[:1] != progress[:1]:
                seen = _Awaited(progress, tick)
            elif seen.progress != progress:
                seen.progress, seen.since = progress, tick
            reason = self._overdue(seen, tick, len(before))
            if reason and given_up < _GIVEN_UP_AT_ONCE:
                given_up += 1
                call.give_up(Status.DEADLINE_EXCEEDED, reason)
            else:
                self._awaited[call.id] = seen

    def refuse_silent(self, calls: Mapping[int, ServerCall], tick: int, reason: str) -> None:
        """Refuse calls whose message has stalled for seconds, to free their memory."""
        for stream_id, awaited in list(self._awaited.items()):
            call = calls.get(stream_id)
            if call is not None and tick - awaited.since > _SILENT_S:
                call.give_up(Status.UNAVAILABLE, reason)

    def _overdue(self, awaited: _Awaited, tick: int, calls: int) -> str:
        """Return the reason for ending a call, or "". `calls`: number of calls that share the client's
        bandwidth.
        """
        limits, elapsed_s = self._limits, tick - awaited.began
        if tick - awaited.since > limits.message_timeout_s:
            return f"no byte of the request message for {limits.message_timeout_s} s"
        if elapsed_s > limits.max_receive_s:
            return f"the request message was not complete within {limits.max_receive_s} s"
        slow = awaited.received * calls < limits.min_receive_rate * elapsed_s
        if slow and elapsed_s > limits.message_timeout_s:
            return f"the request message came at less than {limits.min_receive_rate} bytes per second"
        return ""
