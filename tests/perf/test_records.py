"""Records: rows in order, over block borders."""

import numpy as np

from tests.perf.conftest import make_records
from tpx.perf.records import FIELDS, ROW_BYTES, Records, succeeded


def test_a_row_is_fourteen_64_bit_integers_in_a_fixed_order() -> None:
    times = ("start_ns", "intended_ns", "sent_ns", "first_byte_ns", "end_ns")
    numbers = ("status", "responses", "step", "sequence")
    units = ("units", "prompt_units", "cached_units", "reasoning_units")
    assert (*times, *numbers, *units, "first_output_ns") == FIELDS
    assert ROW_BYTES == 112
    records = Records()
    records.append(*range(1, 15))
    assert records.since(0).tobytes() == np.arange(1, 15, dtype="<i8").tobytes()


def test_rows_come_back_in_order_from_any_index_over_many_blocks() -> None:
    records = Records(block_rows=4)
    for i in range(23):
        records.append(i, i, i, i, i * 10, 0)
        assert len(records) == i + 1
    for index in range(24):
        assert records.since(index)["end_ns"].tolist() == [i * 10 for i in range(index, 23)]


def test_any_stretch_of_rows_is_read_by_itself() -> None:
    records = Records(block_rows=4)
    for i in range(23):
        records.append(i, i, i, i, i, 0)
    for first in range(24):
        for last in range(first, 27):
            ends = records.between(first, last)["end_ns"].tolist()
            assert ends == list(range(first, min(last, 23)))


def test_reading_while_rows_are_appended_does_not_change_what_was_read() -> None:
    records = Records(block_rows=8)
    records.append(1, 1, 1, 1, 1, 0)
    before = records.since(0)
    records.append(2, 2, 2, 2, 2, 0)
    assert before["end_ns"].tolist() == [1]


def test_no_rows_are_an_empty_array() -> None:
    assert len(Records().since(0)) == 0


def test_succeeded_leaves_out_every_other_status() -> None:
    rows = make_records([1, 2, 3, 4, 5], failed_at=[1, 3]).since(0)
    assert (succeeded(rows)["end_ns"] // 1_000_000).tolist() == [1, 3, 5]
