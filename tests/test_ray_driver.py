"""Ray's private calls: all in one module, and a ceiling on Ray's version, since no release promises them."""

import re
import tomllib
from pathlib import Path

import pytest

from tpx import ray_driver

ROOT = Path(__file__).parents[1]
PRIVATE = re.compile(r"\bray\._private\b|\b_internal_kv_\w+")


def test_private_calls_of_ray_stand_in_one_module() -> None:
    users = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tpx").rglob("*.py")
        if PRIVATE.search(path.read_text(encoding="utf-8"))
    }
    assert users == {"tpx/ray_driver.py"}


def test_ray_has_a_ceiling_up_to_which_its_private_calls_were_tried() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (needed,) = extras["optional-dependencies"]["cluster"]
    assert re.fullmatch(r"ray>=\d+\.\d+,<\d+\.\d+", needed)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_private_calls_do_what_tpx_needs_of_them() -> None:
    """Fails with a release of Ray that has changed them: mend `ray_driver`, then raise the ceiling."""
    ray = pytest.importorskip("ray", reason="pip install 'tpx[cluster]', or run make test-cluster")
    ray.init(num_cpus=1, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    try:
        (node,) = ray.nodes()
        assert ray_driver.free_resources()[node["NodeID"]]["CPU"] == 1
        assert ray_driver.read_value(b"tpx/test") is None
        for value in (b"one", b"two"):
            ray_driver.keep_value(b"tpx/test", value)
            assert ray_driver.read_value(b"tpx/test") == value
        ray_driver.drop_value(b"tpx/test")
        assert ray_driver.read_value(b"tpx/test") is None
        ray_driver._refuse_full()
    finally:
        ray.shutdown()
