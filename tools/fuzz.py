"""Fuzz with coverage as the guide (atheris): every target for some seconds, what was found kept between runs.

    python tools/fuzz.py [--seconds 60] [TARGET ...]

Each target runs in a process of its own, which ends at the first input that breaks a promise; that input is
written beside the corpus in .cache/fuzz. Where atheris is missing, hypothesis tries as many inputs as it can
in that time, without such a guide.
"""

import argparse
import importlib.util
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".cache" / "fuzz"

ONE = """
import sys
sys.path.insert(0, {root!r})
from tools.fuzz import run_one
run_one({name!r}, sys.argv[1:])
"""


def main() -> int:
    """Fuzz the targets that were asked for, or all; the number of those that failed."""
    parser = argparse.ArgumentParser(description="fuzz everything that takes bytes from strangers")
    parser.add_argument("targets", nargs="*", help="names; all if none is given")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    arguments = parser.parse_args()
    if unknown := set(arguments.targets) - set(names()):
        parser.error(f"no target {', '.join(sorted(unknown))} (has: {', '.join(names())})")
    guided = importlib.util.find_spec("atheris") is not None
    if not guided:
        print("atheris is not installed: hypothesis tries what it can, without coverage as a guide")
    failed = []
    for name in arguments.targets or names():
        print(f"== {name}", flush=True)
        if _fuzz(name, arguments.seconds, guided=guided):
            failed.append(name)
    print(f"broken: {', '.join(failed)}" if failed else "every promise was kept")
    return len(failed)


def names() -> list[str]:
    """Every target."""
    from tests.fuzz import endpoint_targets
    from tests.fuzz.test_targets import TARGETS

    return [*TARGETS, *endpoint_targets.NAMES]


def _fuzz(name: str, seconds: int, *, guided: bool) -> int:
    corpus = CACHE / name
    corpus.mkdir(parents=True, exist_ok=True)
    words = [str(seconds)]
    if guided:
        words = [
            str(corpus),
            f"-max_total_time={seconds}",
            "-timeout=10",
            "-rss_limit_mb=2048",
            "-max_len=4096",
            "-print_final_stats=1",
            f"-artifact_prefix={CACHE}/{name}-",
        ]
    command = [sys.executable, "-c", ONE.format(root=str(ROOT), name=name), *words]
    output = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
    lines = output.stderr.splitlines()
    wanted = lines if output.returncode else [line for line in lines if "DONE" in line][-1:]
    print("\n".join(wanted[-60:]), flush=True)
    return output.returncode


def run_one(name: str, words: list[str]) -> None:
    """In a process of its own: fuzz one target. Ends the process."""
    if importlib.util.find_spec("atheris") is None:
        with _target(name) as target:
            _run_with_hypothesis(target, int(words[0]))
        return
    import atheris

    with atheris.instrument_imports(include=["tpx", "hpack"]):
        import tpx.serving.server  # noqa: F401 (what is imported here is watched)
    with _target(name) as target:
        for number, seed in enumerate(target.seeds):
            (Path(words[0]) / f"seed-{number}").write_bytes(seed)
        atheris.Setup([sys.argv[0], *words], target.run)
        atheris.Fuzz()


@contextmanager
def _target(name: str) -> Iterator[Any]:
    """A target by its name, and the server that it needs."""
    from tests.fuzz import endpoint_targets
    from tests.fuzz.test_targets import TARGETS

    if name in TARGETS:
        yield TARGETS[name]
        return
    with endpoint_targets.endpoints() as running:
        yield next(target for target in running.targets if target.name == name)


def _run_with_hypothesis(target: Any, seconds: int) -> None:
    from tests.fuzz.test_targets import fuzz

    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        fuzz(target, 500, derandomize=False)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
