"""Recorded tables: which columns are read, and what is refused."""

import math
from pathlib import Path

import pytest

from tests.analyzer.measuring import make_latency, make_measurement
from tests.analyzer.simulated import Surface, read_table
from tpx.analyzer.results.measurement import LoadPoint
from tpx.errors import MeasurementError


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_table_of_model_analyzer_is_read(tmp_path: Path) -> None:
    table = written(
        tmp_path / "metrics-model-inference.csv",
        "Model,Batch,Concurrency,Model Config Path,Instance Group,Max Batch Size,Satisfies Constraints,"
        "Throughput (infer/sec),p99 Latency (ms)\nm,2,8,m_config_default,1:GPU,0,Yes,1001.8,8.3\n\n",
    )
    assert read_table(table) == [
        make_measurement(
            variant="m_config_default",
            load=LoadPoint(value=8, batch_size=2),
            throughput=1001.8,
            latency=make_latency(p99_ns=8_300_000),
        )
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Model Config Path,Throughput (infer/sec)\na,1\n", r"table\.csv:2: no column 'Concurrency'"),
        ("Model Config Path,Concurrency,Throughput (infer/sec)\na,x,1\n", r"table\.csv:2: invalid literal"),
    ],
)
def test_a_table_that_lacks_something_is_refused_with_its_line(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(MeasurementError, match=message):
        read_table(written(tmp_path / "table.csv", text))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match=r"missing\.csv: No such file"):
        read_table(tmp_path / "missing.csv")


def test_the_surface_is_the_published_formula() -> None:
    surface = Surface(host_ms=0.401, device_ms=0.5967, item_ms=0.0, contention=0.0)
    one, five = surface.throughput(1, 1, 32), surface.throughput(5, 1, 32)
    assert math.isclose(one, 1000 / 0.9977, rel_tol=1e-9)
    assert math.isclose(five, 1000 / 0.5967, rel_tol=1e-9)
    assert math.isclose(surface.throughput(4, 1, 1), one, rel_tol=1e-9)
