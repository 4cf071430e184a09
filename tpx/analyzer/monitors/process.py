"""Memory of the server's processes, by psutil."""

import psutil

from tpx.analyzer.results.measurement import MemoryUse


class ProcessProbe:
    """The memory of a process and its children together; of each figure the most that was seen."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._rss_bytes = 0
        self._uss_bytes: int | None = None
        self._available_bytes: int | None = None

    def sample(self) -> None:
        rss = uss = 0
        shared_is_known = True
        for process in self._processes():
            try:
                rss += process.memory_info().rss
                uss += process.memory_full_info().uss
            except psutil.AccessDenied:
                shared_is_known = False
            except psutil.NoSuchProcess:
                continue
        if not rss:
            return
        self._rss_bytes = max(self._rss_bytes, rss)
        if shared_is_known:
            self._uss_bytes = max(self._uss_bytes or 0, uss)
        available = psutil.virtual_memory().available
        self._available_bytes = min(self._available_bytes or available, available)

    def memory(self) -> MemoryUse | None:
        if not self._rss_bytes:
            return None
        return MemoryUse(
            rss_bytes=self._rss_bytes, uss_bytes=self._uss_bytes, host_available_bytes=self._available_bytes
        )

    def gpus(self) -> tuple[()]:
        return ()

    def close(self) -> None:
        return

    def _processes(self) -> list[psutil.Process]:
        try:
            server = psutil.Process(self._pid)
            return [server, *server.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []
