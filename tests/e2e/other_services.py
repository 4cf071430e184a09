"""Services other than v2 servers that `tpx perf` measures, until this module is killed.

Each has its default port; OpenAI's API has port 9000.
"""

import sys
import threading
from contextlib import ExitStack

from tests.perf.clients.openai_server import Script, openai_server
from tests.perf.clients.test_tfserving import tfserving
from tests.perf.clients.test_torchserve import torchserve

if __name__ == "__main__":
    with ExitStack() as running:
        running.enter_context(openai_server(Script(replies=True, first_s=0.002, gap_s=0.001), port=9000))
        running.enter_context(torchserve(port=8080))
        running.enter_context(tfserving(port=8500))
        sys.stdout.write("every service is ready\n")
        sys.stdout.flush()
        threading.Event().wait()
