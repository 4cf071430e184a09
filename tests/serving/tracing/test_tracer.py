"""Which requests are traced: rates, counts, settings of models over those of the server, and clearing."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.tracing.requests import request_for
from tpx.errors import InvalidRequest
from tpx.serving.tracing.settings import TraceSetting, parse_update
from tpx.serving.tracing.trace import Trace
from tpx.serving.tracing.tracer import Tracer, open_sink


class Traced:
    """A tracer, its file, and requests that are over at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tracer = opened(TraceSetting(trace_file=str(path)))

    def update(self, model: str = "", **texts: str | list[str] | None) -> None:
        given = {name: [text] if isinstance(text, str) else text for name, text in texts.items()}
        self.tracer.update(parse_update(given, self.tracer.setting().fixed), model)

    def sampled(self, count: int, model: str = "net") -> list[int]:
        """Which of so many requests are traced, from 1."""
        out = []
        for number in range(1, count + 1):
            trace = self.tracer.sample(model) if self.tracer.on else None
            if trace is not None:
                out.append(number)
                finish(trace)
        return out

    def values(self, model: str = "") -> tuple[tuple[str, ...], int, int, int]:
        told = self.tracer.setting(model)
        return told.trace_level, told.trace_rate, told.trace_count, told.log_frequency


def opened(start: TraceSetting) -> Tracer:
    return Tracer(start, open_sink(start))


def finish(trace: Trace) -> None:
    trace.begin(request_for([[1, 2]]))
    trace.end()


def traces(path: Path) -> list[int]:
    """The ids of the traces in a file."""
    return [record["id"] for record in json.loads(path.read_bytes()) if "model_name" in record]


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[Traced]:
    made = Traced(tmp_path / "trace.json")
    yield made
    made.tracer.close()


def test_nothing_is_traced_while_the_level_is_off(traced: Traced) -> None:
    assert not traced.tracer.on
    traced.update(trace_rate="1")
    assert not traced.tracer.on
    assert traced.sampled(5) == []


def test_every_third_request_is_traced(traced: Traced) -> None:
    traced.update(trace_level="TIMESTAMPS", trace_rate="3")
    assert traced.sampled(10) == [3, 6, 9]


def test_models_without_a_setting_of_their_own_are_counted_together(traced: Traced) -> None:
    traced.update(trace_level="TIMESTAMPS", trace_rate="3")
    assert [traced.sampled(1, model) for model in "aabcab"] == [[], [], [1], [], [], [1]]


def test_a_count_ends_by_itself_and_can_be_set_again(traced: Traced) -> None:
    traced.update(trace_level="TIMESTAMPS", trace_rate="2", trace_count="2")
    assert traced.sampled(9) == [2, 4]
    assert not traced.tracer.on
    assert traced.values() == (("TIMESTAMPS",), 2, 0, 0)
    traced.update(trace_count="1")
    assert traced.sampled(9) == [2]


def test_what_is_left_of_a_count_survives_other_changes(traced: Traced) -> None:
    traced.update(trace_level="TIMESTAMPS", trace_rate="1", trace_count="5")
    traced.sampled(2)
    traced.update(trace_rate="2")
    assert traced.values() == (("TIMESTAMPS",), 2, 3, 0)


def test_a_models_setting_stands_over_the_servers_where_it_says_something(traced: Traced) -> None:
    traced.update(trace_level="TIMESTAMPS", trace_rate="4")
    traced.update("net", trace_rate="2")
    assert traced.values("net") == (("TIMESTAMPS",), 2, -1, 0)
    assert traced.values("other") == traced.values() == (("TIMESTAMPS",), 4, -1, 0)
    assert (traced.sampled(4, "net"), traced.sampled(4, "other")) == ([2, 4], [4])
    traced.update(trace_level="TENSORS", trace_rate="8")
    assert traced.values("net") == (("TENSORS",), 2, -1, 0)


def test_a_model_can_be_traced_alone_and_be_left_out_alone(traced: Traced) -> None:
    traced.update("net", trace_level="TIMESTAMPS", trace_rate="1")
    assert (traced.sampled(1, "net"), traced.sampled(1, "other")) == ([1], [])
    traced.update(trace_level="TIMESTAMPS", trace_rate="1")
    traced.update("net", trace_level="OFF")
    assert (traced.sampled(1, "net"), traced.sampled(1, "other")) == ([], [1])


def test_clearing_falls_back_to_the_server_and_there_to_the_start(traced: Traced) -> None:
    traced.update(trace_level="TIMESTAMPS", trace_rate="4", log_frequency="3")
    traced.update("net", trace_rate="2", trace_count="9")
    traced.update("net", trace_rate=None)
    assert traced.values("net") == (("TIMESTAMPS",), 4, 9, 3)
    traced.update(trace_rate=None, trace_level=None)
    assert traced.values() == ((), 1000, -1, 3)
    assert traced.values("net") == ((), 1000, 9, 3)


def test_a_model_that_has_nothing_of_its_own_left_is_counted_with_the_others_again(traced: Traced) -> None:
    traced.update(trace_level="TIMESTAMPS", trace_rate="2")
    traced.update("net", trace_rate="5")
    traced.update("net", trace_rate=None)
    assert [traced.sampled(1, model) for model in ("net", "other")] == [[], [1]]


def test_a_model_that_says_everything_counts_on_when_the_server_changes(traced: Traced) -> None:
    traced.update("net", trace_level="TIMESTAMPS", trace_rate="3", trace_count="9", log_frequency="0")
    assert traced.sampled(2, "net") == []
    traced.update(trace_level="TENSORS")
    assert traced.sampled(1, "net") == [1]


def test_a_setting_that_can_trace_nothing_changes_nothing(tmp_path: Path, traced: Traced) -> None:
    traced.update("net", trace_level="TIMESTAMPS")
    with pytest.raises(
        InvalidRequest, match=r"^Attempting to set invalid trace setting :sample rate must be non-zero$"
    ):
        traced.update(trace_rate="0")  # the server's level is off, that of the model is not
    assert traced.values("net") == (("TIMESTAMPS",), 1000, -1, 0)
    assert traced.values() == ((), 1000, -1, 0)
    without_file = opened(TraceSetting())
    with pytest.raises(InvalidRequest, match=r"trace file name is not given$"):
        without_file.update(parse_update({"trace_level": ["TIMESTAMPS"]}, {}))
    assert not without_file.on


def test_a_watcher_hears_when_tracing_begins_and_ends(traced: Traced) -> None:
    heard: list[bool] = []
    traced.tracer.watch(lambda: heard.append(traced.tracer.on))
    traced.update(trace_level="TIMESTAMPS", trace_rate="1", trace_count="1")
    traced.update(log_frequency="2")
    traced.sampled(3)
    traced.update("net", trace_count="-1")
    traced.update("net", trace_level="OFF")
    assert heard == [True, False, True, False]


def test_what_is_on_its_way_when_the_setting_changes_is_still_written_under_the_old_one(
    traced: Traced,
) -> None:
    traced.update(trace_level="TIMESTAMPS", trace_rate="1", log_frequency="3")
    first, second = traced.tracer.sample("net"), traced.tracer.sample("net")
    assert first is not None
    assert second is not None
    finish(first)
    traced.update(log_frequency="0")
    traced.sampled(1)
    finish(second)
    traced.tracer.close()
    assert traces(traced.path.with_name("trace.json.0")) == [1, 2]
    assert traces(traced.path) == [3]


def test_files_by_frequency_hold_so_many_traces_each(traced: Traced) -> None:
    traced.update(trace_level="TIMESTAMPS", trace_rate="1", log_frequency="2")
    traced.sampled(5)
    traced.tracer.close()
    assert [traces(traced.path.with_name(f"trace.json.{n}")) for n in range(3)] == [[1, 2], [3, 4], [5]]


def test_a_used_up_count_of_every_request_goes_to_a_numbered_file(traced: Traced) -> None:
    traced.update(trace_level="TIMESTAMPS", trace_rate="1", trace_count="3")
    traced.sampled(7)
    traced.tracer.close()
    assert traces(traced.path.with_name("trace.json.0")) == [1, 2, 3]
    assert not traced.path.exists()


def test_a_used_up_count_of_some_requests_goes_to_the_file(traced: Traced) -> None:
    traced.update(trace_level="TIMESTAMPS", trace_rate="2", trace_count="3")
    traced.sampled(9)
    traced.tracer.close()
    assert traces(traced.path) == [1, 2, 3]
