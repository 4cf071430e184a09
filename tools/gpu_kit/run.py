"""Prove tpx on this machine's GPU: run every test marked `gpu` and the GPU benches, and write what came out.

    gpu-kit/run.sh [tests|bench|scaling|all] [--rehearse]

Needs nothing but this folder and a Python with PyTorch: wheels that the machine lacks are unpacked beside it.
`scaling` measures frontends in processes of their own. Each of the three takes at most nine minutes.
Results are in $OUT, or in gpu-kit/out: results.json, results.md and a log for every step. `--rehearse` does
on the CPU what it can, where there is no GPU.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import xml.etree.ElementTree as ElementTree
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

KIT = Path(__file__).resolve().parent
CARRIED = (
    "typer",
    "rich",
    "jinja2",
    "pyyaml",
    "psutil",
    "msgspec",
    "orjson",
    "pyjson5",
    "httptools",
    "hpack",
    "uvloop",
    "tritonclient[http]",
    "grpcio-reflection<1.82",
    "prometheus-client",
    "pytest",
    "pytest-timeout",
    "hypothesis",
    "trustme",
    "safetensors",
    "cuda-bindings",
)
PRESENT = (
    "torch",
    "numpy",
    "onnx",
    "onnxruntime",
    "protobuf",
    "grpcio",
    "nvidia-ml-py",
    "cryptography",
    "ml-dtypes",
)
"""What the machine has itself; wheels of these are not carried."""
LARGE = ("onnxruntime-gpu", "tensorrt-cu13", "nvidia-dali-cuda120")
BENCHES = {"bench": "gpu", "scaling": "scaling"}
STEP_TIMEOUT_S = 540


def main() -> int:
    """Run the steps; returns 0 where every test that ran has passed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", default="all", choices=("tests", *BENCHES, "all"))
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, where there is no GPU")
    given = parser.parse_args()
    out = Path(os.environ.get("OUT") or KIT / "out")
    out.mkdir(parents=True, exist_ok=True)
    site, source = _prepared(KIT / "work")
    env = {**os.environ, "PYTHONPATH": f"{source}:{site}", "PYTHONDONTWRITEBYTECODE": "1"}
    env["PATH"] = f"{KIT / 'bin'}:{env.get('PATH', '')}"
    if given.rehearse:
        env["TPX_GPU_REHEARSAL"] = "1"
    results: dict[str, Any] = {"machine": _machine(env), "rehearsal": given.rehearse}
    if given.what in ("tests", "all"):
        results["tests"] = [_tested(file, source, out, env) for file in _gpu_tests(source)]
    results["benches"] = [
        _run_bench(bench, source, out, env) for what, bench in BENCHES.items() if given.what in (what, "all")
    ]
    (out / "results.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    (out / "results.md").write_text(_markdown(results), encoding="utf-8")
    print(_markdown(results))
    return 1 if any(each["failed"] or each["error"] for each in results.get("tests", ())) else 0


def _prepared(work: Path) -> tuple[Path, Path]:
    """Unpack the source, and those wheels whose packages are not installed; returns where both are."""
    shutil.rmtree(work, ignore_errors=True)
    site, source = work / "site", work / "source"
    site.mkdir(parents=True)
    with tarfile.open(KIT / "source.tar.gz") as archive:
        archive.extractall(source, filter="data")
    for wheel in sorted((KIT / "wheels").glob("*.whl")):
        name = wheel.name.split("-")[0]
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            with zipfile.ZipFile(wheel) as files:
                files.extractall(site)
    return site, source


def _gpu_tests(source: Path) -> list[str]:
    """The test files that have tests marked `gpu`."""
    files = [
        path
        for path in sorted((source / "tests").rglob("test_*.py"))
        if "mark.gpu" in path.read_text("utf-8")
    ]
    return [str(path.relative_to(source)) for path in files]


def _tested(file: str, source: Path, out: Path, env: dict[str, str]) -> dict[str, Any]:
    """Run one file in a process of its own, so that one that cannot be imported costs nothing else."""
    name = re.sub(r"\W+", "_", file.removesuffix(".py"))
    report = out / f"{name}.xml"
    words = [
        "-m",
        "pytest",
        "-m",
        "gpu",
        "-p",
        "no:cacheprovider",
        "--timeout=300",
        f"--junitxml={report}",
        file,
    ]
    log = _ran([sys.executable, *words], out / f"{name}.log", source, env)
    found: dict[str, Any] = {"file": file, "passed": 0, "failed": [], "skipped": [], "error": ""}
    if not report.exists():
        found["error"] = log.strip().splitlines()[-1] if log.strip() else "no output"
        return found
    for case in ElementTree.parse(report).iter("testcase"):
        skipped, failed = case.find("skipped"), case.find("failure")
        failed = failed if failed is not None else case.find("error")
        if failed is not None:
            found["failed"].append([case.get("name"), (failed.get("message") or "")[:300]])
        elif skipped is not None:
            found["skipped"].append([case.get("name"), skipped.get("message") or ""])
        else:
            found["passed"] += 1
    report.unlink()
    return found


def _run_bench(name: str, source: Path, out: Path, env: dict[str, str]) -> str:
    """Run a bench; returns its tables."""
    words = [sys.executable, "-m", "benchmarks", name, "--rounds", "2", "--seconds", "2"]
    return _ran(words, out / f"{name}.log", source, env)


def _ran(words: list[str], log: Path, source: Path, env: dict[str, str]) -> str:
    """Run a step with its output in a log; returns the output."""
    began = time.monotonic()
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            words, cwd=source, env=env, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            process.wait(STEP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            file.write(f"\nended after {STEP_TIMEOUT_S} s\n")
        with suppress(ProcessLookupError):  # and the servers that a step left behind
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    print(f"{time.monotonic() - began:6.1f} s  {' '.join(words[2:5])} {words[-1]}", flush=True)
    return log.read_text("utf-8", errors="replace")


def _machine(env: dict[str, str]) -> dict[str, Any]:
    """What the figures were taken on."""
    query = "name,memory.total,driver_version"
    gpus = _output(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], env)
    torch = _output(
        [sys.executable, "-c", "import torch; print(torch.__version__, torch.cuda.is_available())"], env
    )
    lacking = [name for name in (*PRESENT, *LARGE) if not _is_installed(name)]
    return {
        "gpus": gpus.splitlines(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch,
        "lacking": lacking,
    }


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _output(words: list[str], env: dict[str, str]) -> str:
    try:
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _markdown(results: dict[str, Any]) -> str:
    """What came out, for people: the machine, the tests with everything that did not run, the tables."""
    machine = results["machine"]
    lines = [
        "# tpx on a GPU" + (" (rehearsal on the CPU)" if results["rehearsal"] else ""),
        "",
        f"{'; '.join(machine['gpus']) or 'no GPU'}; {machine['cores']} cores; Linux {machine['kernel']}; "
        f"Python {machine['python']}; PyTorch {machine['torch'] or 'missing'}",
        "",
        f"Not installed, so that what needs them did not run: {', '.join(machine['lacking']) or 'nothing'}",
    ]
    if "tests" in results:
        lines += ["", "| file | passed | failed | skipped |", "| --- | --- | --- | --- |"]
        for each in results["tests"]:
            failed = "did not start" if each["error"] else len(each["failed"])
            lines.append(f"| {each['file']} | {each['passed']} | {failed} | {len(each['skipped'])} |")
        for each in results["tests"]:
            lines += [f"- FAILED {each['file']}: {each['error']}"] if each["error"] else []
            lines += [f"- FAILED {each['file']}::{name}: {why}" for name, why in each["failed"]]
            lines += [f"- skipped {each['file']}::{name}: {why}" for name, why in each["skipped"]]
    for tables in results["benches"]:
        lines += ["", tables.strip()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
