"""`tpx` for shell scripts: have the process of `tests/warm.py` run these words, and wait for the end."""

import json
import os
import signal
import socket
import sys


def main() -> int:
    status, its = os.pipe()
    directory = os.getcwd()  # noqa: PTH109 (importing pathlib would take as long as all of this)
    message: dict[str, object] = {"words": sys.argv[1:], "cwd": directory, "env": {**os.environ}}
    message["namespaces_of"] = os.getpid()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as starter:
        starter.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        starter.connect(os.environ["TPX_STARTER"])
        socket.send_fds(starter, [json.dumps(message).encode()], [0, 1, 2, its])
    os.close(its)
    with os.fdopen(status) as lines:
        pid = int(lines.readline())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: os.kill(pid, number))
        ended = int(lines.readline())
    return ended if ended >= 0 else 128 - ended


sys.exit(main())
