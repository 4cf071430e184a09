"""Answers the name of a cluster on each line of stdin with its state.

It connects to Ray once, which takes longer than all else that `tpx cluster status` does.
"""

import json
import sys
from contextlib import redirect_stdout

from tpx.cluster.client import Cluster
from tpx.errors import TpxError
from tpx.ray_driver import connected


def main() -> None:
    """Answer until stdin ends; errors are told."""
    out = sys.stdout
    with redirect_stdout(sys.stderr), connected(sys.argv[1]):
        for name in sys.stdin:
            try:
                answer = Cluster(name.strip()).status()
            except TpxError as exc:
                answer = {"error": str(exc)}
            print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    main()
