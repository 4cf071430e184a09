"""The processors that this process may use."""

from pathlib import Path

import pytest

from tpx.processors import usable_processors


@pytest.mark.parametrize(("text", "most"), [("50000 100000", 0.5), ("max 100000", 1e9), ("", 1e9)])
def test_a_container_has_the_processors_that_it_is_allowed(tmp_path: Path, text: str, most: float) -> None:
    limit = tmp_path / "cpu.max"
    limit.write_text(text)
    free = usable_processors(tmp_path / "absent")
    assert free >= 1
    assert usable_processors(limit) == min(free, most)
