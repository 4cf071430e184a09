"""`python -m benchmarks.tritonserver`: fetch the real Triton that the benchmarks use; print how to start it.

What is printed is the path of a script that takes tritonserver's flags: what TPX_TRITONSERVER names.
"""

import os
import shlex
import sys
from pathlib import Path

from benchmarks.__main__ import CACHE, PEERS_VARIABLE
from benchmarks.peers import Peers
from tpx.errors import MeasurementError


def main() -> int:
    """Returns the exit status."""
    peers = Peers(Path(os.environ.get(PEERS_VARIABLE) or CACHE / "peers"))
    try:
        command = shlex.join(map(str, peers.tritonserver()))
    except MeasurementError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in peers.triton_env().items())
    script = peers.root / "bin" / "tritonserver"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(f'#!/bin/sh\nexport {variables}\nexec {command} "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    print(script)
    return 0


if __name__ == "__main__":
    sys.exit(main())
