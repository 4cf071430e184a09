"""Thread counts of sessions: each session has its own pools, or all models of the process share them."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import onnxruntime as ort

from tpx.errors import LoadError
from tpx.processors import schedulable_processors
from tpx.protocol.messages import ModelConfig
from tpx.serving.backends.onnxruntime.failures import ORT_ERRORS
from tpx.serving.backends.parameters import GivenParameters, instance_specs

INTRA, INTER, GLOBAL = "intra_op_thread_count", "inter_op_thread_count", "enable-global-threadpool"
COMMAND_LINE = "--backend-config onnxruntime"
_making = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Threads:
    """Thread counts of a session's pools or of the shared pools; 0 leaves the count to ONNX Runtime."""

    intra_op: int
    inter_op: int
    common: bool = False

    @classmethod
    def of(cls, config: ModelConfig, settings: Mapping[str, str]) -> "Threads":
        """Return the counts set by the model or by --backend-config, or else this instance's share of
        the cores.

        Raises ConfigError, or LoadError if the shared pools cannot be as --backend-config says.
        """
        told = GivenParameters(where=COMMAND_LINE, words=settings)
        model = GivenParameters.of_model(config)
        if told.switch(GLOBAL, default=False):
            for key in {INTRA, INTER} & model.words.keys():
                model.warn(key, f"has no effect: {COMMAND_LINE},{GLOBAL} gives all models the same threads")
            threads = cls(intra_op=told.whole(INTRA), inter_op=told.whole(INTER), common=True)
            _make_pools(threads)
            return threads
        share = max(1, schedulable_processors() // max(1, len(instance_specs(config))))
        return cls(
            intra_op=model.whole(INTRA) or told.whole(INTRA) or share,
            inter_op=model.whole(INTER) or told.whole(INTER) or 1,
        )

    @property
    def in_the_caller(self) -> bool:
        """True if runs compute in the calling thread or the shared pools; sessions can then be shared."""
        return self.common or self.intra_op == 1

    def apply(self, options: ort.SessionOptions) -> None:
        """Apply the counts to a session's options."""
        if self.common:
            options.use_per_session_threads = False
            return
        options.intra_op_num_threads = self.intra_op
        options.inter_op_num_threads = self.inter_op


def _make_pools(threads: Threads) -> None:
    with _making:
        _make_pools_once(threads)


@cache
def _make_pools_once(threads: Threads) -> None:
    """Create the shared pools, which belong to the process and cannot be changed."""
    if not hasattr(ort, "set_global_thread_pool_sizes"):
        raise LoadError(
            f"--backend-config onnxruntime,{GLOBAL}: ONNX Runtime {ort.__version__} cannot be told from "
            "Python to share its threads: pip install --upgrade onnxruntime"
        )
    try:
        ort.set_global_thread_pool_sizes(threads.intra_op, threads.inter_op)
    except ORT_ERRORS as exc:
        raise LoadError(
            f"--backend-config onnxruntime,{GLOBAL}: the threads that all models of this process share have "
            f"other counts already: {exc}"
        ) from exc
