"""The Python examples, served as they are written."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serving.live import Live, serving
from tpx import examples


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository = tmp_path_factory.mktemp("examples")
    examples.write(repository, ["mnist", "word_count", "mnist_vote"])
    with serving(repository) as running:
        yield running


def test_words_are_counted(live: Live) -> None:
    texts = np.array([[b"one"], [b"a few more words"], [b""]], dtype=np.object_)
    answer = live.infer_binary("word_count", {"TEXT": texts})
    assert np.frombuffer(answer.tail, np.int32).tolist() == [1, 4, 0]


def test_a_vote_is_the_mean_of_five_opinions(live: Live, digits: Any) -> None:
    images = (digits.images[:8] / 16).astype(np.float32)[:, None]
    vote = live.infer_binary("mnist_vote", {"image": images})
    assert vote.status == 200, vote.body
    opinions = []
    for move in ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0)):
        answer = live.infer_binary("mnist", {"image": np.roll(images, move, axis=(2, 3))})
        opinions.append(np.frombuffer(answer.tail, np.float32))
    assert np.allclose(np.frombuffer(vote.tail, np.float32), np.mean(opinions, axis=0), atol=1e-5)


def test_the_written_files_are_all_there_is(tmp_path: Path) -> None:
    examples.write(tmp_path, ["word_count"])
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert files == ["word_count/1/model.py", "word_count/config.pbtxt"]
