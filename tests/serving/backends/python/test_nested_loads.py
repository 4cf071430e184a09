"""Python models that load other models while they are being loaded themselves."""

from pathlib import Path

import pytest

from tests.serving.backends.python.asking import ask, said, say, y_of
from tests.serving.backends.python.conftest import SAY
from tests.serving.backends.python.zoo import SAME, add
from tests.serving.live import Live, serving

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


ASKS = """
    def initialize(self, args):
        import os
        import threading

        watch = threading.Timer(10, os._exit, [1])
        watch.start()
        pb_utils.{verb}_model("{whom}")
        watch.cancel()

    def execute("""


def asking(repository: Path, name: str, whom: str, verb: str = "load") -> None:
    code = add(repository, name, code="double") / "model.py"
    code.write_text(code.read_text().replace("    def execute(", ASKS.format(verb=verb, whom=whom)))


def refused(live: Live, name: str) -> str:
    answer = live.http("POST", f"/v2/repository/models/{name}/load")
    assert answer.status == 400
    return str(answer.json["error"])


@pytest.mark.parametrize("verb", ["load", "unload"])
def test_a_model_that_waits_for_itself_is_told_so(tmp_path: Path, verb: str) -> None:
    asking(tmp_path, "self", "self", verb)
    with serving(tmp_path, model_control_mode="explicit") as live:
        assert "'self' waits for itself while it is being loaded: self -> self" in refused(live, "self")


def test_models_that_wait_for_each_other_are_told_so(tmp_path: Path) -> None:
    """The last one to wait closes the circle; then those before it fail, too."""
    for name, whom in (("a", "b"), ("b", "c"), ("c", "a")):
        asking(tmp_path, name, whom)
    with serving(tmp_path, model_control_mode="explicit") as live:
        for name, last in (("a", "c"), ("b", "a"), ("c", "b")):
            assert f"'{last}' waits for itself while it is being loaded: " in refused(live, name)


@pytest.mark.parametrize(
    ("first", "why"),
    [
        ("part", "circular dependency between ensembles: part -> whole -> part"),
        ("whole", "'part' waits for itself while it is being loaded: part -> whole -> part"),
    ],
)
def test_a_model_and_an_ensemble_of_it_that_wait_for_each_other_are_told_so(
    tmp_path: Path, first: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    asking(tmp_path, "part", "whole")
    folder = tmp_path / "whole"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(
        f"platform: 'ensemble' {SAME} ensemble_scheduling {{ step {{ model_name: 'part' "
        "input_map { key: 'x' value: 'x' } output_map { key: 'y' value: 'y' } } }"
    )
    with serving(tmp_path, model_control_mode="explicit") as live:
        refused(live, first)
    assert why in caplog.text


def test_a_model_that_serves_may_have_itself_loaded_again(tmp_path: Path) -> None:
    code = add(tmp_path, "say", config=SAY) / "model.py"
    with serving(tmp_path, model_control_mode="explicit", load_model=("say",)) as live:
        code.write_text(code.read_text() + "\n")
        assert say(live, "load say").status == 200
        assert said(say(live, "pid"))
