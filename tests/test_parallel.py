"""`--processes` reports what the tests of a project do, whichever process ran them."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

SHARING = """
import os, pytest
@pytest.fixture(scope="session")
def shared():
    yield os.getpid()
    assert not os.environ.get("FAIL_AT_THE_END"), "the shared server had complaints"
def test_first(shared, tmp_path):
    print("\\udcff is no Unicode")
    (tmp_path.parent / "pid").write_text(str(shared))
    assert not os.environ.get("FAIL"), "the first one fails"
def test_second(shared, tmp_path):
    assert (tmp_path.parent / "pid").read_text() == str(shared)
@pytest.mark.skip(reason="not today")
def test_skipped(): pass
"""
DYING = """
import os
def test_dies(): os.environ.get("DIE") and os._exit(1)
def test_behind_it(): pass
"""
WAITING = """
import os, time
def test_waits(tmp_path): time.sleep(50 * bool(os.environ.get("WAIT")))
"""


def run(folder: Path, *words: str, **environment: str) -> tuple[int, str]:
    """Run the tests of three files in two processes; return the status and what was shown."""
    for name, text in {"sharing": SHARING, "dying": DYING, "waiting": WAITING}.items():
        (folder / f"test_{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "tests.parallel", "--processes", "2", "-ra", *words]
    ended = subprocess.run(
        [*command, "-q", "-p", "no:cacheprovider", "--rootdir", folder, folder],
        cwd=ROOT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


def test_all_is_counted_and_a_file_shares_its_fixtures(tmp_path: Path) -> None:
    status, shown = run(tmp_path)
    assert status == 0
    assert "5 passed, 1 skipped" in shown
    assert "not today" in shown


def test_failures_are_shown_with_their_output(tmp_path: Path) -> None:
    status, shown = run(tmp_path, FAIL="1", FAIL_AT_THE_END="1")
    assert status == 1
    assert "the first one fails" in shown
    assert "is no Unicode" in shown
    assert "the shared server had complaints" in shown
    assert "1 failed, 4 passed, 1 skipped, 1 error" in shown


def test_a_process_that_dies_fails_what_it_did_not_run(tmp_path: Path) -> None:
    status, shown = run(tmp_path, DIE="1")
    assert status == 1
    assert re.search(r"FAILED .*test_dies\b", shown)
    assert re.search(r"FAILED .*test_behind_it\b", shown)
    assert len(re.findall("^the process that was to run this test has died", shown, re.MULTILINE)) == 2
    assert "2 failed, 3 passed, 1 skipped" in shown


def test_after_the_first_failure_the_others_are_interrupted(tmp_path: Path) -> None:
    status, shown = run(tmp_path, "-x", FAIL="1", WAIT="1")
    assert status == 1
    assert "stopping after 1 failures" in shown
    assert "test_waits" not in shown
