"""How many threads PyTorch computes with: counts of the whole process, which the first model that names them
sets."""

import logging
import os
import threading

import torch

log = logging.getLogger(__name__)


class ThreadCounts:
    """What the models of a process have asked for. Used by loader threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._intra = ""
        """The model that has named a count."""
        self._most_instances = 0

    def ask(self, model: str, *, intra: int, inter: int, instances: int) -> None:
        """Set counts for a model; 0 is none of its own: the cores divided among as many instances as a model
        has."""
        with self._lock:
            self._most_instances = max(self._most_instances, instances)
            if intra:
                self._ask_intra(model, intra)
            elif not self._intra:
                torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // self._most_instances))
            if inter:
                _ask_inter(model, inter)

    def _ask_intra(self, model: str, count: int) -> None:
        if not self._intra:
            self._intra = model
            torch.set_num_threads(count)
        elif torch.get_num_threads() != count:
            log.warning(
                "model '%s' asks for INTRA_OP_THREAD_COUNT %d, but all models of a process share one count: "
                "%d, "
                "as model '%s' has set it first",
                model,
                count,
                torch.get_num_threads(),
                self._intra,
            )


def _ask_inter(model: str, count: int) -> None:
    if torch.get_num_interop_threads() == count:
        return
    try:
        torch.set_num_interop_threads(count)
    except RuntimeError:
        log.warning(
            "model '%s' asks for INTER_OP_THREAD_COUNT %d, but PyTorch takes the count only once, before it "
            "has "
            "computed anything: it is %d",
            model,
            count,
            torch.get_num_interop_threads(),
        )


PROCESS = ThreadCounts()
"""PyTorch has one pool of threads, and so this is one."""
