"""What else the machine does while something is measured, by psutil."""

import contextlib
import os

import psutil

from tpx.analyzer.results.measurement import HostUse

FEWEST_S = 0.2
"""Processor time is counted in hundredths of a second; of less than this a share means nothing."""


class HostWatch:
    """The processors' time between its making and `use`, less that of the server and of this process."""

    def __init__(self, server_pid: int | None) -> None:
        """`server_pid` None is a server elsewhere: then all but this process counts as other programs."""
        self._server_pid = server_pid
        self._before = psutil.cpu_times()
        self._own_before_s = self._own_s()

    def use(self) -> HostUse | None:
        """None where too little time has passed."""
        before, after = self._before, psutil.cpu_times()
        total_s = sum(after[:8]) - sum(before[:8])  # guests' time is in that of users already
        if total_s < FEWEST_S:
            return None
        steal_s = getattr(after, "steal", 0.0) - getattr(before, "steal", 0.0)
        idle_s = after.idle - before.idle + getattr(after, "iowait", 0.0) - getattr(before, "iowait", 0.0)
        busy_s = total_s - idle_s - steal_s
        other_s = max(0.0, busy_s - (self._own_s() - self._own_before_s))
        return HostUse(
            load_average=os.getloadavg()[0],
            cores=psutil.cpu_count() or 1,
            steal_percent=max(0.0, steal_s) / total_s * 100,
            other_percent=other_s / total_s * 100,
        )

    def _own_s(self) -> float:
        """Processor time of this process and of the server with its children, those that ended included."""
        total_s = 0.0
        for process in (psutil.Process(), *self._server()):
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                total_s += times.user + times.system
                if process.pid == self._server_pid:
                    total_s += times.children_user + times.children_system
        return total_s

    def _server(self) -> list[psutil.Process]:
        if self._server_pid is None:
            return []
        try:
            server = psutil.Process(self._server_pid)
            return [server, *server.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []
