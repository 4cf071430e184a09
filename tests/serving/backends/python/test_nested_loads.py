"""Python models that load other models while they are being loaded themselves."""

from pathlib import Path

import pytest

from tests.serving.backends.python.asking import ask, y_of
from tests.serving.backends.python.zoo import add
from tests.serving.live import serving

NEEDS = """
    def initialize(self, args):
        import os
        import threading

        watch = threading.Timer(10, os._exit, [1])
        watch.start()
        pb_utils.load_model("below")
        watch.cancel()

    def execute("""


@pytest.mark.parametrize("memory_limit", [0, 4 << 30])
@pytest.mark.parametrize("at_start", [False, True])
def test_a_model_that_loads_another_lets_it_pass(tmp_path: Path, at_start: bool, memory_limit: int) -> None:
    """At the start what it asks for is being loaded already, and waits for a thread; under a limit of memory,
    for its turn to be measured."""
    code = add(tmp_path, "above", code="double") / "model.py"
    code.write_text(code.read_text().replace("    def execute(", NEEDS))
    add(tmp_path, "below", code="double")
    options = {"load_model": ("*",) if at_start else (), "exit_on_error": False}
    with serving(
        tmp_path,
        model_control_mode="explicit",
        model_load_thread_count=1,
        model_memory_limit=memory_limit,
        **options,
    ) as live:
        if not at_start:
            assert live.http("POST", "/v2/repository/models/above/load").status == 200
        assert y_of(ask(live, "above", 2)) == y_of(ask(live, "below", 2)) == [4]
