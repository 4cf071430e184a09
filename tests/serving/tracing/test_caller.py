"""What the headers of W3C Trace Context say, and what is handed on."""

import json

import pytest

from tpx.serving.tracing.trace import Caller, ids_below, read_caller

TRACE, SPAN = "0af7651916cd43dd8448eb211c12666c", "b7ad6b7169242424"


@pytest.mark.parametrize(
    ("header", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f" 00-{TRACE}-{SPAN}-01 ", True),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", True),
    ],
)
def test_a_caller_is_read_from_its_header(header: str, *, sampled: bool) -> None:
    assert read_caller(header, "a=1") == Caller(int(TRACE, 16), int(SPAN, 16), sampled, "a=1")


@pytest.mark.parametrize(
    "header",
    [
        "",
        TRACE,
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-01,00-{TRACE}-{SPAN}-01",
    ],
)
def test_what_no_caller_can_have_sent_is_none(header: str) -> None:
    assert read_caller(header) is None


@pytest.mark.parametrize("state", ["x" * 513, "a=ü"])
def test_a_state_that_cannot_be_handed_on_is_left_out(state: str) -> None:
    caller = read_caller(f"00-{TRACE}-{SPAN}-01", state)
    assert caller is not None
    assert caller.state == ""


def test_the_places_of_one_trace_lie_below_each_other() -> None:
    ids = ids_below(Caller(1, 2, sampled=True, state="a=b"))
    child = ids.child()
    assert (ids.trace_id, child.trace_id, child.above_id) == (1, 1, ids.span_id)
    assert len({2, ids.above_id, ids.span_id, child.span_id}) == 4
    assert json.loads(child.context) == {
        "traceparent": f"00-{1:032x}-{child.span_id:016x}-01",
        "tracestate": "a=b",
    }


def test_requests_without_a_caller_are_traces_of_their_own() -> None:
    one, other = ids_below(None), ids_below(None)
    assert one.trace_id != other.trace_id
    assert "tracestate" not in json.loads(one.context)
