"""Running the scripts of `examples/`."""

import subprocess
import sys
from pathlib import Path

from tests.e2e.child import environment

SCRIPTS = Path(__file__).parents[2] / "examples"


def ran(script: str, *words: object, cwd: Path, status: int = 0) -> str:
    """Return what a script prints."""
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / script), *map(str, words)],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == status, done.stderr
    return done.stdout
