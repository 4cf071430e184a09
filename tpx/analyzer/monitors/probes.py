"""Which probes there are for a server, on this machine or elsewhere."""

from collections.abc import Sequence

from tpx.analyzer.monitors.base import Probe
from tpx.analyzer.monitors.gpu import open_gpu_probe
from tpx.analyzer.monitors.page import PageProbe
from tpx.analyzer.monitors.process import ProcessProbe, family
from tpx.analyzer.monitors.rapl import open_rapl_probe


def open_probes(
    pid: int | None, metrics_url: str = "", gpus: Sequence[str] | None = None
) -> tuple[Probe, ...]:
    """All that can watch a server; `gpus` are those that count, None is every one.

    A server elsewhere (`pid` is None) is seen by its metrics page alone. On this machine the page stands in
    where NVML does not answer.
    """
    page: tuple[Probe, ...] = (PageProbe(metrics_url),) if metrics_url else ()
    if pid is None:
        return page
    found: list[Probe] = [ProcessProbe(pid)]
    gpu = open_gpu_probe(gpus, lambda: family(pid)) if gpus is None or gpus else None
    if gpu is not None:
        found.append(gpu)
    elif gpus is None or gpus:
        found += page
    rapl = open_rapl_probe()
    if rapl is not None:
        found.append(rapl)
    return tuple(found)
