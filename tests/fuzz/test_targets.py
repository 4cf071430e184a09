"""Every target, with mutations of its seeds and with arbitrary bytes, the same in every run."""

from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import language_targets, message_targets, wire_targets
from tests.fuzz.base import Target
from tests.fuzz.endpoint_targets import NAMES, Endpoints, endpoints

TARGETS = {
    target.name: target
    for target in (*wire_targets.TARGETS, *message_targets.TARGETS, *language_targets.TARGETS)
}


@st.composite
def damaged(draw: st.DrawFn, seeds: tuple[bytes, ...]) -> bytes:
    """A seed with something wrong in it, or two of them joined."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        kind = draw(st.sampled_from(["replace", "insert", "delete", "repeat", "splice", "bit"]))
        if kind == "replace":
            data[at : at + 1] = draw(st.binary(min_size=1, max_size=2))
        elif kind == "insert":
            data[at:at] = draw(
                st.binary(max_size=6) | st.sampled_from([b"\r\n", b"\0", b"\xff" * 9, b"0" * 40])
            )
        elif kind == "delete":
            del data[at : at + draw(st.integers(1, 40))]
        elif kind == "repeat":
            data[at:at] = data[at : at + draw(st.integers(1, 200))] * draw(st.integers(1, 4))
        elif kind == "splice":
            data[at:] = draw(st.sampled_from(seeds))[draw(st.integers(0, 60)) :]
        elif at < len(data):
            data[at] ^= 1 << draw(st.integers(0, 7))
    return bytes(data)


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_breaks_a_promise(name: str) -> None:
    target = TARGETS[name]
    for seed in target.seeds:
        target.run(seed)
    fuzz(target, target.examples)


@pytest.fixture(scope="module")
def running() -> Iterator[Endpoints]:
    """A server that must go on serving."""
    with endpoints() as found:
        yield found


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_message_is_answered_with_an_error_of_ours(
    running: Endpoints, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    [target] = [target for target in running.targets if target.name == name]
    fuzz(target, 1)  # what is made only once is there
    before = psutil.Process()
    held = before.num_fds(), before.num_threads()
    for seed in target.seeds:
        target.run(seed)
    fuzz(target, target.examples)
    assert not [record for record in caplog.records if record.exc_info]
    assert before.num_fds() <= held[0] + 2
    assert before.num_threads() <= held[1] + 8  # of pools that fill as they are used


def fuzz(target: Target, examples: int, **more: Any) -> None:
    """Try so many inputs; raises what the first of them breaks."""

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        **{"derandomize": True, **more},
    )
    @given(damaged(target.seeds) | st.binary(max_size=300))
    def run(data: bytes) -> None:
        target.run(data)

    run()
