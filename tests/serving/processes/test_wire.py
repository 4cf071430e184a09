"""Messages between the engine and its frontends."""

import pytest

from tpx.errors import Code, InvalidRequest, Overloaded, TpxError
from tpx.serving.processes import wire


@pytest.mark.parametrize(
    "error", [InvalidRequest("wrong"), Overloaded("full"), Overloaded("late", code=Code.INTERNAL)]
)
def test_an_error_keeps_its_code_and_whether_to_ask_again(error: TpxError) -> None:
    got = wire.decode(wire.Error, wire.encode(wire.Error.of(error))).error()
    assert (got.message, got.code) == (error.message, error.code)
    assert isinstance(got, Overloaded) == isinstance(error, Overloaded)
