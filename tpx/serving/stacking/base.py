"""The seam between batches and the arrays that a model computes with."""

from typing import Protocol

from tpx.serving.batch import Arrays, Batch


class Stacking(Protocol):
    """Runs in the instance's thread, which records the times of the batch."""

    def gather(self, batch: Batch) -> Arrays:
        """Return the inputs of the model. Raises InvalidRequest."""

    def scatter(self, batch: Batch, outputs: Arrays) -> None:
        """Give each request its response.

        Raises ExecutionError for an output that is missing or differs from the configuration.
        """
