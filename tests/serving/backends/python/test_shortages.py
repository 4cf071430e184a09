"""No memory between the processes is left, or no descriptor: what needs one fails, and nothing else."""

import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier

import numpy as np
import pytest

from tests.serving.backends.python.asking import ask, said, say, y_of
from tests.serving.backends.python.conftest import SAY
from tests.serving.backends.python.zoo import DECOUPLED, SAME, add
from tests.serving.live import Answer, Live, serving
from tests.waiting import eventually
from tpx.serving.transport import memory

LARGE = 2_000_000
PAIR = "max_batch_size: 2 dynamic_batching { max_queue_delay_microseconds: 5000000 }" + SAME


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository = tmp_path_factory.mktemp("models")
    add(repository, "say", config=SAY)
    add(repository, "grows")
    add(repository, "streams", "grows", SAME + DECOUPLED)
    add(repository, "pair", "sizes", PAIR)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "RESERVED_BYTES", 4 << 20)
        with serving(repository) as running:
            yield running


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Neither this process nor the server in it can open anything; what is open stays."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def generate(live: Live, count: int) -> tuple[int, bytes]:
    answer = live.http("POST", "/v2/models/streams/generate", b'{"x": [%d]}' % count)
    return answer.status, answer.body


def test_an_answer_without_memory_to_go_through_is_an_error_and_its_model_goes_on(live: Live) -> None:
    assert y_of(ask(live, "grows", 2)) == [0, 0]
    answer = ask(live, "grows", LARGE)
    assert answer.status == 500
    assert "the server has no shared memory" in answer.error
    assert y_of(ask(live, "grows", 2)) == [0, 0]
    assert len(y_of(ask(live, "grows", 50_000))) == 50_000


def test_a_response_without_memory_to_go_through_is_an_error_and_its_model_goes_on(live: Live) -> None:
    assert generate(live, 2)[0] == 200
    status, body = generate(live, LARGE)
    assert status == 500
    assert b"the server has no shared memory" in body
    assert generate(live, 2)[0] == 200
    assert generate(live, 50_000)[0] == 200


def test_a_batch_without_memory_to_go_through_fails_for_all_of_its_requests(live: Live) -> None:
    with ThreadPoolExecutor(2) as pool:
        both = Barrier(2)

        def ask_with_other(size: int) -> Answer:
            both.wait(10)
            return live.infer_binary("pair", {"x": np.ones((1, size), np.float32)})

        assert [answer.status for answer in pool.map(ask_with_other, (1, 1))] == [200, 200]
        answers = list(pool.map(ask_with_other, (LARGE, LARGE)))
        assert [answer.status for answer in answers] == [500, 500]
        assert all("no shared memory" in answer.error for answer in answers)
        assert [answer.status for answer in pool.map(ask_with_other, (50_000, 50_000))] == [200, 200]


def test_a_batch_that_could_not_be_sent_leaves_its_memory_to_the_next(live: Live) -> None:
    with ThreadPoolExecutor(2) as pool:
        both = Barrier(2)

        def ask_with_other(size: int) -> Answer:
            both.wait(10)
            return live.infer_binary("pair", {"x": np.ones((1, size), np.float32)})

        assert [answer.status for answer in pool.map(ask_with_other, (600_000, 600_000))] == [500, 500]
        assert [answer.status for answer in pool.map(ask_with_other, (400_000, 400_000))] == [200, 200]


def test_large_tensors_need_no_descriptors(live: Live) -> None:
    with no_descriptors():
        assert len(y_of(ask(live, "grows", 500_000))) == 500_000


@pytest.mark.slow  # it is tried again after five seconds
def test_a_process_that_could_not_be_started_is_started_when_there_are_descriptors_again(
    live: Live, caplog: pytest.LogCaptureFixture
) -> None:
    before = said(say(live, "pid"))
    with no_descriptors():
        assert say(live, "die").status == 503
        eventually(lambda: "cannot restart say" in caplog.text)
    assert said(say(live, "pid")) != before
