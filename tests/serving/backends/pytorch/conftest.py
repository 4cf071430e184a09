"""What several test files need and what takes long to make."""

from pathlib import Path

import pytest
import torch

from tests.serving.backends.pytorch import zoo


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an AOTInductor package of Scaled, for up to 16 rows."""
    directory = tmp_path_factory.mktemp("aoti")
    program = zoo.exported(zoo.Scaled(), torch.ones(2, 3), scale=torch.ones(2, 3), most=16)
    zoo.package(program, directory / "model.pt2")
    return directory
