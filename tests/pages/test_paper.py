"""Tables on paper: what is left out where not everything fits across, and how wide the rest is."""

from tpx.pages.paper import MOST_COLUMNS, column_widths, columns_shown, plain
from tpx.pages.view import Column


def test_minor_columns_give_way_to_the_others() -> None:
    columns = [Column(header=str(i), minor=i in (2, 3, 4)) for i in range(MOST_COLUMNS + 2)]
    assert columns_shown(columns) == [0, 1, 2, *range(5, MOST_COLUMNS + 2)]
    assert columns_shown(columns[:MOST_COLUMNS]) == list(range(MOST_COLUMNS))


def test_no_column_is_narrower_than_its_longest_word() -> None:
    rows = [["mnist_config_default", "48,058.7 \u00b1 58,268.5", "4"], ["x", "1", "a reason " * 60]]
    widths = column_widths(("Configuration", "Concurrency", "Why"), rows)
    assert widths[0] > len("mnist_config_default")
    assert widths[1] > len("Concurrency")
    assert max(widths) == widths[2]


def test_signs_beyond_latin_are_told_in_latin() -> None:
    assert plain("1 \u2192 2 \u2013 \u03bc\u2026") == "1 -> 2 - ?..."
