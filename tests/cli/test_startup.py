"""The tables that a server shows when it starts."""

from pathlib import Path

import pytest

from tests.serving.live import serving
from tests.serving.onnx_files import doubling, write_model
from tests.serving.repository.agents.journal import Journal, asks_for, journals
from tpx import __version__
from tpx.argv import from_argv
from tpx.cli.startup import log_models, model_rows, option_rows, table
from tpx.serving.dataplane import RepositoryEntry
from tpx.serving.options import ServeConfig


def test_a_table_has_tritons_lines() -> None:
    assert table(("Model", "Version"), [("net", "1"), ("another", "12")]) == (
        "+---------+---------+\n"
        "| Model   | Version |\n"
        "+---------+---------+\n"
        "| net     | 1       |\n"
        "| another | 12      |\n"
        "+---------+---------+\n"
    )


def test_a_table_fits_the_terminal() -> None:
    words = "classification sequence model_repository"
    made = table(("Option", "Value"), [("server_extensions", words), ("id", "x" * 50)], 48)
    assert made == (
        "+-------------------+--------------------------+\n"
        "| Option            | Value                    |\n"
        "+-------------------+--------------------------+\n"
        "| server_extensions | classification sequence  |\n"
        "|                   | model_repository         |\n"
        "| id                | xxxxxxxxxxxxxxxxxxxxxxxx |\n"
        "|                   | xxxxxxxxxxxxxxxxxxxxxxxx |\n"
        "|                   | xx                       |\n"
        "+-------------------+--------------------------+\n"
    )
    assert len(table(("Value",), [("x" * 300,)]).splitlines()[0]) == 304


def test_tables_without_rows_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(tmp_path) as live, caplog.at_level("INFO", "tpx.cli.startup"):
        log_models(live.server, ServeConfig())
    assert [record.getMessage() for record in caplog.records if record.name == "tpx.cli.startup"] == [
        "no models found"
    ]


@pytest.mark.parametrize(("cell", "shown"), [("a\nb", r"a\nb"), ("\x1b[0m", r"\x1b[0m"), ("ü|", "ü|")])
def test_no_cell_leaves_its_line(cell: str, shown: str) -> None:
    assert table(("A",), [(cell,)]).splitlines()[3] == f"| {shown} |"


def test_models_have_a_state_and_its_reason() -> None:
    entries = [
        RepositoryEntry(name="a", version="1", state="READY", reason=""),
        RepositoryEntry(name="b", version="", state="UNAVAILABLE", reason="no such file"),
    ]
    assert model_rows(entries) == [("a", "1", "READY"), ("b", "-", "UNAVAILABLE: no such file")]


def test_options_are_tritons_in_its_order() -> None:
    words = ["--model-repository=/a", "--model-repository=/b", "--model-control-mode=explicit"]
    words += ["--load-model=x", "--load-model=y", "--disable-auto-complete-config", "--id=me"]
    words += ["--strict-readiness=false", "--exit-timeout-secs=7", "--model-config-name=h100"]
    words += ["--response-cache-byte-size=4096"]
    assert option_rows(from_argv(ServeConfig, words), ["trace", "logging"]) == [
        ("server_id", "me"),
        ("server_version", __version__),
        ("server_extensions", "trace logging"),
        ("model_repository_path[0]", str(Path("/a"))),
        ("model_repository_path[1]", str(Path("/b"))),
        ("model_control_mode", "MODE_EXPLICIT"),
        ("startup_models_0", "x"),
        ("startup_models_1", "y"),
        ("strict_model_config", "1"),
        ("model_config_name", "h100"),
        ("rate_limit", "OFF"),
        ("pinned_memory_pool_byte_size", "268435456"),
        ("min_supported_compute_capability", "6.0"),
        ("strict_readiness", "0"),
        ("exit_timeout", "7"),
        ("cache_enabled", "1"),
    ]


def test_agents_and_backends_of_the_models_are_listed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_model(tmp_path / "models", "net", doubling())
    journal = Journal(tmp_path)
    asks_for(tmp_path / "models" / "net", journals())
    with serving(tmp_path / "models", repoagent_directory=journal.agents) as live:
        config = from_argv(ServeConfig, [f"--repoagent-directory={journal.agents}"])
        with caplog.at_level("INFO", "tpx.cli.startup"):
            log_models(live.server, config)
    agents, backends, models = (record.block for record in caplog.records if hasattr(record, "block"))
    assert f"| journal          | {journal.agents}/journal/agent.py |" in agents
    assert "| onnxruntime | tpx.serving.backends.onnxruntime" in backends
    assert "| net   | 1       | READY  |" in models
