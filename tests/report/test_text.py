"""Tables as plain text: what fits a terminal, and what is left out where not all of it does."""

import pytest

from tpx.report.text import Table

NAME = "image_classification_config_default"
WIDE = Table(
    title="Models",
    headers=(
        "Model",
        "Model Config Path",
        "Instance Group",
        "Throughput (infer/sec)",
        "p50",
        "p99 Latency (ms)",
    ),
    rows=tuple(
        ("image_classification", f"{NAME}_{n}", f"{n}:CPU,{n}:GPU", f"{n}00.5", f"{n}", f"{n}0")
        for n in (1, 2)
    ),
    numeric=frozenset({3, 4, 5}),
    minor=frozenset({4}),
)


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_a_table_fits_the_terminal_and_every_name_is_whole(width: int) -> None:
    text = WIDE.to_console(width)
    assert max(map(len, text.splitlines())) <= width
    assert "all with Model image_classification" in " ".join(text.split())
    assert "Throughput" in text
    assert all(figure in text for figure in ("100.5", "200.5", "10", "20"))


def test_minor_columns_go_before_names_are_broken() -> None:
    assert "p50" in WIDE.to_console()
    narrow = WIDE.to_console(74)
    assert "p50" not in narrow
    assert f"{NAME}_1" in narrow


def test_names_that_do_not_fit_are_broken_after_separators() -> None:
    lines = WIDE.to_console(60).splitlines()
    assert any(line.startswith("image_classification_") for line in lines)
    assert not any(line.strip().startswith("_") for line in lines)


def test_a_table_without_rows_has_its_headers() -> None:
    empty = Table(title="Models", headers=("Model", "p99"), rows=())
    assert empty.to_console(5) == "Models:\nModel   p99"
