"""Install the wheel in dist/ into an empty environment and use it: write example models, serve them, measure
one, stop. Leaves dist/constraints.txt, the tried versions, with which containers are built, and the same as a
bill of materials in the format of CycloneDX, dist/sbom.json."""

import json
import re
import signal
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

DIST = Path("dist")
EXTRAS = "onnx,cloud,otel"
"""Extras that deploy/Containerfile installs."""
STABLE_OR_NOT = (0, 2)
"""Exit statuses of tpx perf: 2 says that the machine was too busy for stable figures."""


def run(*words: str | Path, statuses: tuple[int, ...] = (0,), cwd: Path | None = None) -> str:
    """Return the standard output of a command that ends with one of these statuses."""
    done = subprocess.run(words, cwd=cwd, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in statuses:
        sys.exit(f"{' '.join(map(str, words))} ended with status {done.returncode}:\n{done.stdout}")
    return done.stdout


def install(wheel: Path, environment: Path) -> Path:
    """Return the path of the `tpx` that the wheel brought."""
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", f"{wheel.resolve()}[{EXTRAS}]")
    versions = run(python, "-m", "pip", "freeze", "--exclude", "tpx")
    (DIST / "constraints.txt").write_text(versions, encoding="utf-8")
    cyclonedx = Path(sys.executable).with_name("cyclonedx-py")
    run(cyclonedx, "environment", "--pyproject=pyproject.toml", "-o", DIST / "sbom.json", python)
    return environment / "bin" / "tpx"


def use(tpx: Path, folder: Path) -> None:
    """Serve the example models, ask one of them, and stop the server."""
    run(tpx, "quickstart", "models", cwd=folder)
    words: list[str | Path] = [
        tpx,
        "serve",
        "--model-repository=models",
        "--http-port=0",
        "--grpc-port=0",
        "--metrics-port=0",
    ]
    server = subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        said = ""
        for line in server.stdout or ():
            said += line
            if "is ready" in line:
                break
        address = re.search(r"HTTPService at (\S+:\d+)", said)
        if address is None:
            sys.exit(f"the server did not start:\n{said}")
        run(
            tpx, "perf", "-m", "mnist", "-u", address[1], "--request-count=50", "--json=perf.json",
            statuses=STABLE_OR_NOT, cwd=folder,
        )  # fmt: skip
        server.send_signal(signal.SIGTERM)
        if (status := server.wait(60)) != 0:
            sys.exit(f"the server ended with status {status}")
    finally:
        server.kill()
    if not json.loads((folder / "perf.json").read_text("utf-8")):
        sys.exit("nothing was measured")


def main() -> None:
    """Try the one wheel that `make dist` has built."""
    [wheel] = DIST.glob("*.whl")
    version = wheel.name.split("-")[1]
    with tempfile.TemporaryDirectory() as folder:
        tpx = install(wheel, Path(folder) / "environment")
        if (said := run(tpx, "--version", cwd=Path(folder)).split()[-1]) != version:
            sys.exit(f"{wheel.name} says that it is version {said}")
        use(tpx, Path(folder))
    print(f"{wheel}: installed into an empty environment, served, measured and stopped")


if __name__ == "__main__":
    main()
