"""run.jsonl: what is written is read again, also after a crash in the middle of a line."""

import resource
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.analyzer.measuring import make_latency, make_measurement, make_streaming
from tpx.analyzer.results.goals import Goals
from tpx.analyzer.results.journal import (
    SCHEMA,
    Configured,
    Journal,
    Measured,
    Provenance,
    Record,
    RunEnded,
    RunResumed,
    RunStarted,
    TrialFailed,
    read_last_run,
)
from tpx.analyzer.results.measurement import (
    Configuration,
    GpuUse,
    LoadPoint,
    MemoryUse,
    TrialFailure,
    Variant,
)
from tpx.analyzer.results.pooled import Mean
from tpx.analyzer.results.run import Run
from tpx.errors import MeasurementError, UsageError

STARTED = RunStarted(
    schema=SCHEMA,
    models=(("m",),),
    goals=Goals(),
    top=3,
    settings={"concurrency": [1, 2]},
    provenance=Provenance(command=("tpx",), started="2026-01-01T00:00:00+00:00", versions={}, host={}),
)
MEASURED = Measured(
    model="m",
    measurement=make_measurement(
        variant="m_config_default",
        load=LoadPoint(value=4, batch_size=2),
        throughput=123.456,
        latency=make_latency(avg_ns=1, p99_ns=2),
        stable=False,
        note="windows differ",
        memory=MemoryUse(rss_bytes=10, uss_bytes=5),
        gpus=(GpuUse(uuid="GPU-1", used_bytes=1, total_bytes=2),),
    ),
)
ENDED = RunEnded(outcome="complete", elapsed_ns=5)


def write(path: Path, *records: Record) -> None:
    with Journal(path) as journal:
        for record in records:
            journal.append(record)


def test_records_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run.jsonl"
    write(path, STARTED, MEASURED, ENDED)
    assert read_last_run(path) == [STARTED, MEASURED, ENDED]


def test_every_record_is_one_line_on_the_disk_at_once(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Journal(path) as journal:
        journal.append(STARTED)
        assert path.read_bytes().count(b"\n") == 1
        journal.append(MEASURED)
        assert path.read_bytes().count(b"\n") == 2


def test_a_line_cut_short_by_a_crash_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write(path, STARTED, MEASURED)
    whole = path.read_bytes()
    for cut in (1, 20, 60):
        path.write_bytes(whole[:-cut])
        assert read_last_run(path) == [STARTED]


def test_a_new_run_starts_a_line_of_its_own_after_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write(path, STARTED, MEASURED)
    path.write_bytes(path.read_bytes()[:-9])
    write(path, STARTED, ENDED)
    assert read_last_run(path) == [STARTED, ENDED]
    assert path.read_bytes().count(b"\n") == 3


def test_the_last_of_several_runs_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write(path, STARTED, MEASURED, ENDED)
    write(path, STARTED)
    assert read_last_run(path) == [STARTED]


def test_a_damaged_line_before_the_end_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write(path, STARTED, MEASURED)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b'{"record": "measurement", "mo\n' + lines[1])
    with pytest.raises(MeasurementError, match=r"run\.jsonl:2: not a record"):
        read_last_run(path)


def test_another_schema_is_refused_by_number(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write(path, STARTED)
    path.write_bytes(path.read_bytes().replace(b'"schema":2', b'"schema":99'))
    with pytest.raises(MeasurementError, match="schema 99"):
        read_last_run(path)


@pytest.mark.parametrize("content", [b"", b"\n", b'{"record":"end","outcome":"complete","elapsed_ns":1}\n'])
def test_a_file_without_a_run_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    with pytest.raises(MeasurementError):
        read_last_run(path)


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MeasurementError, match="--export-path"):
        Journal(tmp_path / "file" / "run.jsonl")


def test_the_run_of_a_journal_without_an_end_is_unfinished(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write(path, STARTED)
    assert Run.from_records(read_last_run(path)).outcome == "unfinished"


def test_a_whole_run_reads_back_to_the_same_figures(replay: Callable[..., Run], tmp_path: Path) -> None:
    run = replay()
    again = Run.from_records(read_last_run(tmp_path / "results" / "run.jsonl"))
    assert again == run
    assert sum(m.measurement_count for m in again.models) == 41


def test_a_journal_has_one_writer(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Journal(path) as journal:
        journal.append(STARTED)
        with pytest.raises(UsageError, match="is being written by another tpx analyze"):
            Journal(path)
        journal.append(ENDED)
    assert read_last_run(path) == [STARTED, ENDED]


@pytest.mark.skipif(sys.platform != "linux", reason="sizes of files are limited per process on Linux")
def test_a_full_disk_is_told_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Journal(path) as journal:
        journal.append(STARTED)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, limits[1]))
        try:
            with pytest.raises(MeasurementError, match=r"cannot write .*run\.jsonl: .*Free space or choose"):
                journal.append(MEASURED)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert path.read_bytes().endswith(b"}\n"), "half a line is left"
        journal.append(ENDED)
    assert read_last_run(path) == [STARTED, ENDED]


def test_a_run_that_is_resumed_has_not_ended(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write(path, STARTED, MEASURED, RunEnded(outcome="interrupted", elapsed_ns=5, reason="the server is gone"))
    assert Run.from_records(read_last_run(path)).reason == "the server is gone"
    write(path, RunResumed(provenance=STARTED.provenance))
    assert Run.from_records(read_last_run(path)).outcome == "unfinished"
    write(path, MEASURED, RunEnded(outcome="complete", elapsed_ns=9))
    run = Run.from_records(read_last_run(path))
    assert (run.outcome, run.elapsed_ns) == ("complete", 9)


def configured(name: str) -> Configured:
    return Configured(
        configuration=Configuration(
            variant=Variant(models=("m",), name=name, delta={}),
            text="",
            instance_group="1:CPU",
            instances=1,
            max_batch_size=0,
            dynamic_batching=False,
        )
    )


def repeated(variant: str, number: int) -> Measured:
    return Measured(model="m", measurement=replace(MEASURED.measurement, variant=variant, round=number))


FINALISTS = (configured("m_config_default"), configured("m_config_0"))
CUT = (repeated("m_config_0", 1), repeated("m_config_default", 1), repeated("m_config_default", 2))


def repetitions(*records: Record) -> list[int]:
    (model,) = Run.from_records([STARTED, *FINALISTS, MEASURED, *records]).models
    return [len(variant.repetitions) for variant in model.variants]


def test_a_second_final_round_that_was_interrupted_does_not_count() -> None:
    assert repetitions(*CUT) == [1, 1]
    assert repetitions(*CUT, repeated("m_config_0", 2)) == [2, 2]


def test_rounds_of_an_only_configuration_count_once_all_of_its_loads_have_two() -> None:
    def rounds_at(*loads: int) -> list[bool]:
        """Whether rounds count, of two loads that the search measured."""
        of_search = [replace(MEASURED.measurement, round=0, load=LoadPoint(value=value)) for value in (1, 2)]
        rounds = [
            replace(of_search[value - 1], round=1 + loads[:i].count(value)) for i, value in enumerate(loads)
        ]
        records = [Measured(model="m", measurement=each) for each in (*of_search, *rounds)]
        (model,) = Run.from_records([STARTED, configured(MEASURED.measurement.variant), *records]).models
        return [isinstance(point, Mean) for point in model.variants[0].points]

    assert rounds_at(1, 2, 2, 1) == [True, True]
    assert rounds_at(1, 2, 2) == [False, False]
    assert rounds_at(1) == [False, False]


def test_a_finalist_that_failed_takes_no_rounds_from_the_others() -> None:
    failure = TrialFailure(variant="m_config_0", load=LoadPoint(value=4), round=2, reason="it died")
    assert repetitions(*CUT, TrialFailed(model="m", failure=failure)) == [2, 1]


def test_the_latencies_of_earlier_releases_are_read(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Journal(path) as journal:
        journal.append(STARTED)
    with path.open("a", encoding="utf-8") as file:
        file.write(
            '{"record":"measurement","model":"m","measurement":{"variant":"m_config_0","load":{"value":1},'
            '"throughput":2.0,"latency":{"avg_ns":5,"p50_ns":4,"p90_ns":6,"p95_ns":7,"p99_ns":8},'
            '"answers":{"first":{"min_ns":1,"max_ns":9,"avg_ns":5,"p99_ns":8},"between":null,"throughput":3.0}}}\n'
        )
    found = read_last_run(path)[-1]
    assert isinstance(found, Measured)
    assert found.measurement.result.latency == make_latency(avg_ns=5, p50_ns=4, p90_ns=6, p95_ns=7, p99_ns=8)
    streaming = found.measurement.result.streaming
    assert streaming is not None
    assert streaming.times("ttft") == make_latency(min_ns=1, max_ns=9, avg_ns=5, p99_ns=8)


def test_the_streams_of_tpx_1_0_are_read(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    first = make_latency(min_ns=1, max_ns=9, avg_ns=5, p99_ns=8)
    with Journal(path) as journal:
        journal.append(STARTED)
        journal.append(Measured(model="m", measurement=make_measurement(answers=make_streaming(first, None))))
    *lines, line = path.read_bytes().splitlines()
    record = msgspec.json.decode(line)
    streaming = record["measurement"]["result"]["streaming"]
    (figure,) = streaming.pop("figures")
    streaming |= {"first_response": figure["summary"], "inter_response": None}
    path.write_bytes(b"\n".join([*lines, msgspec.json.encode(record), b""]))
    found = read_last_run(path)[-1]
    assert isinstance(found, Measured)
    assert found.measurement.result.streaming == make_streaming(first, None)
