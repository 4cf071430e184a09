"""Fixtures of object stores."""

import warnings
from collections.abc import Iterator

import pytest

from tests.serving.repository.stores.s3 import Bucket, storage


@pytest.fixture(scope="session")
def s3() -> Iterator[Bucket]:
    """A bucket for all tests: each keeps to a prefix of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with storage() as bucket:
            yield bucket
