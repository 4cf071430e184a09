"""`python -m benchmarks.program NAME`: fetch `tritonserver` or `perf_analyzer`, as the benchmarks use them.

What is printed is the path of a script that takes the program's flags: what TPX_TRITONSERVER and
TPX_TEST_PERF_ANALYZER name.
"""

import os
import shlex
import sys
from pathlib import Path

from benchmarks.__main__ import CACHE, PEERS_VARIABLE
from benchmarks.peers import Peers
from tpx.errors import MeasurementError

NAMES = ("tritonserver", "perf_analyzer")


def main(name: str) -> int:
    """Returns the exit status."""
    peers = Peers(Path(os.environ.get(PEERS_VARIABLE) or CACHE / "peers"))
    try:
        if name == "tritonserver":
            command, env = peers.tritonserver(), peers.triton_env()
        else:
            command, env = (peers.perf_analyzer(),), peers.perf_analyzer_env()
    except MeasurementError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1
    variables = " ".join(f"{each}={shlex.quote(value)}" for each, value in env.items())
    script = peers.root / "bin" / name
    script.parent.mkdir(parents=True, exist_ok=True)
    words = shlex.join(map(str, command))
    script.write_text(f'#!/bin/sh\nexport {variables}\nexec {words} "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    print(script)
    return 0


if __name__ == "__main__":
    if sys.argv[1:] not in ([name] for name in NAMES):
        sys.exit(f"usage: python -m benchmarks.program {{{','.join(NAMES)}}}")
    sys.exit(main(sys.argv[1]))
