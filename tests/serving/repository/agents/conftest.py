"""What repository agents are tested with: a directory of agents, a journal, a place for temporary files."""

from pathlib import Path

import pytest

from tests.serving.repository.agents.journal import Journal


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """An empty model repository."""
    directory = tmp_path / "models"
    directory.mkdir()
    return directory


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """Agents that write down what they are told."""
    return Journal(tmp_path)
