"""The main job on the example models: serve them, measure one, search for its best configuration, show the
report.

Everything is written below ./demo; the servers listen on free ports and are stopped at the end.
"""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path("demo")
MODELS = ROOT / "models"
REPORTS = ROOT / "reports"
UNSTABLE = 2
"""Exit status of tpx perf where no load became stable."""
TPX = [sys.executable, "-m", "tpx"]


def title(text: str) -> None:
    print(f"\n\033[1m== {text}\033[0m" if sys.stdout.isatty() else f"\n== {text}", flush=True)


def run(*words: str) -> None:
    print("$ tpx " + " ".join(words), flush=True)
    done = subprocess.run([*TPX, *words], check=False)
    if words[0] == "perf" and done.returncode == UNSTABLE:
        print("note: the machine was too busy for stable figures", flush=True)
    elif done.returncode:
        sys.exit(f"tpx {words[0]} ended with status {done.returncode}")


def serve() -> tuple[subprocess.Popen[str], str, str]:
    """A server on free ports, and its HTTP and gRPC addresses once it is ready."""
    words = ["serve", "--model-repository", str(MODELS), "--http-port=0", "--grpc-port=0", "--metrics-port=0"]
    print("$ tpx " + " ".join(words), flush=True)
    server = subprocess.Popen([*TPX, *words], stdout=subprocess.PIPE, text=True)
    lines = []
    for line in server.stdout or ():
        lines.append(line)
        print("  " + line, end="", flush=True)
        if "is ready" in line:
            break
    found = dict(re.findall(r"Started (\w+) at (\S+:\d+)", "".join(lines)))
    if not {"HTTPService", "GRPCInferenceService"} <= found.keys():
        server.kill()
        sys.exit("the server did not start")
    return server, found["HTTPService"], found["GRPCInferenceService"]


def main() -> None:
    began = time.monotonic()
    title("The example models")
    run("quickstart", str(MODELS))
    title("Serve them")
    server, http, grpc = serve()
    try:
        title("Measure one, over HTTP and gRPC")
        quick = ["-p", "500", "--max-trials", "5"]
        run("perf", "-m", "mnist", "-u", http, "--concurrency-range", "1:4", *quick)
        run("perf", "-m", "mnist", "-u", grpc, "-i", "grpc", "--concurrency-range", "1:16:x4", *quick)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)
    title("Find its best configuration")
    run(
        *("analyze", "profile", "--model-repository", str(MODELS), "--profile-models", "mnist"),
        *("--run-config-search-max-instance-count", "2", "--run-config-search-max-model-batch-size", "4"),
        *("--run-config-search-max-concurrency", "16", "--measurement-interval", "500"),
        *("--final-rounds", "3"),
        *("-d", "1", "-e", str(REPORTS)),
    )
    title(f"Done in {time.monotonic() - began:.0f} s")
    for report in sorted(REPORTS.glob("*.html")):
        print(f"Open the report:  {report}")


if __name__ == "__main__":
    main()
