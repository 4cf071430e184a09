"""How many batches a process is given before it has computed the first."""

import pytest

from tpx.serving.backends.python.instance import QueueDepth


@pytest.mark.parametrize(("took_ns", "depth"), [(20_000, 8), (1_000_000, 2), (50_000_000, 1)])
def test_the_shorter_a_model_the_more_is_handed_over(took_ns: int, depth: int) -> None:
    depths = QueueDepth()
    assert [depths.after(took_ns) for _ in range(40)][-1] == depth
