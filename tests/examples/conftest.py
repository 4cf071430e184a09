"""What the networks of the examples are asked to see."""

from typing import Any

import pytest


@pytest.fixture(scope="session")
def digits() -> Any:
    """The images that they were trained on, and others; scikit-learn takes long to import."""
    from sklearn.datasets import load_digits

    return load_digits()
