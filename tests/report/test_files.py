"""Files of a report: one that cannot be written does not keep the others from being written."""

from pathlib import Path

import pytest

from tpx.errors import MeasurementError
from tpx.report.files import file_output, write_each


def test_a_full_disk_costs_the_file_that_is_on_it_alone(tmp_path: Path) -> None:
    places = {"JSON": Path("/dev/full"), "JUnit": None, "Markdown": tmp_path / "a.md"}
    outputs = [file_output(label, path, lambda: "text") for label, path in places.items()]
    with pytest.raises(MeasurementError, match=r"^cannot write /dev/full: No space left on device$"):
        write_each(outputs)
    assert (tmp_path / "a.md").read_text("utf-8") == "text"
