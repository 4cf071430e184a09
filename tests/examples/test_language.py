"""The example of a language model."""

from pathlib import Path

import pytest

from tpx import examples
from tpx.cli.main import run
from tpx.examples.language import TINY
from tpx.protocol import model_config
from tpx.serving.backends.llamacpp.backend import EngineSettings


def test_it_is_written_where_its_engine_is_installed_and_its_parameters_are_known(tmp_path: Path) -> None:
    assert "tiny" in examples.servable()
    assert "tiny" not in examples.ALL
    [model] = examples.write(tmp_path, ["tiny"])
    path = model.path / "1" / "model.gguf"
    assert path.read_bytes().startswith(b"GGUF")
    assert path.stat().st_size + len(TINY.config) < TINY.size_bytes
    settings = EngineSettings.of(model_config.read(model.path / "config.pbtxt"), path)
    assert settings.n_parallel == 8


def test_quickstart_says_how_to_stream_from_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["quickstart", str(tmp_path), "--models", "identity,tiny"]) == 0
    assert "localhost:8000/v1/chat/completions" in capsys.readouterr().out
    assert run(["quickstart", str(tmp_path), "--models", "identity"]) == 0
    assert "completions" not in capsys.readouterr().out
