"""`make gpu-kit`: put source, tests and the wheels that a GPU machine lacks into ./gpu-kit, to be carried.

The machine has a Python with PyTorch and no network. Wheels are fetched for its Python and platform.
"""

import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from tools.gpu_kit.run import CARRIED, LARGE, PRESENT

ROOT = Path(__file__).resolve().parents[2]
KIT = ROOT / "gpu-kit"
LIMIT_BYTES = 64 << 20
PYTHON = "3.12"
PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_28_x86_64")
CLIENTS = ("wrk", "h2load")
OF_THE_SYSTEM = re.compile(r"(libc|libm|libdl|librt|libpthread|ld-linux-x86-64)\.so\.\d+$")
"""Parts of glibc, which every machine has and which fit only its own loader."""
SOURCE = ("tpx", "tests", "benchmarks", "pyproject.toml", "README.md", "docs", "LICENSE")


def main() -> None:
    """Write the kit; exits with a message where it would be too large to carry."""
    shutil.rmtree(KIT, ignore_errors=True)
    (KIT / "wheels").mkdir(parents=True)
    _pack_source()
    _fetch_wheels()
    for program in CLIENTS:
        _pack_program(program)
    shutil.copy(ROOT / "tools/gpu_kit/run.py", KIT / "run.py")
    script = KIT / "run.sh"
    script.write_text(
        '#!/bin/sh\nexec "${PYTHON:-python3}" "$(dirname "$0")/run.py" "$@"\n', encoding="utf-8"
    )
    script.chmod(0o755)
    size = sum(path.stat().st_size for path in KIT.rglob("*") if path.is_file())
    if size > LIMIT_BYTES:
        sys.exit(f"gpu-kit has {size >> 20} MiB, more than the {LIMIT_BYTES >> 20} MiB that it may have")
    wheels = len(list((KIT / "wheels").iterdir()))
    print(f"gpu-kit: {size / (1 << 20):.1f} MiB, {wheels} wheels for Python {PYTHON}")
    print(f"not carried, expected there: {', '.join(PRESENT)}; too large: {', '.join(LARGE)}")
    print("copy the folder to the GPU machine, then: gpu-kit/run.sh all")


def _pack_source() -> None:
    """The files that git tracks or would track, as they are in the working tree."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *SOURCE],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    with tarfile.open(KIT / "source.tar.gz", "w:gz") as archive:
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (ROOT / name).is_file():
                archive.add(ROOT / name, name)


def _fetch_wheels() -> None:
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"]
    words += ["--python-version", PYTHON, "--implementation", "cp", "--dest", str(KIT / "wheels")]
    words += [word for platform in PLATFORMS for word in ("--platform", platform)]
    subprocess.run([*words, *CARRIED], check=True)
    for wheel in (KIT / "wheels").iterdir():
        if re.sub(r"[-_.]+", "-", wheel.name.split("-")[0]).lower() in PRESENT:
            wheel.unlink()


def _pack_program(name: str) -> None:
    """Copy a program with the libraries that it needs, behind a script that finds them."""
    program = shutil.which(name)
    if program is None:
        sys.exit(f"{name} is not installed: apt-get install wrk nghttp2-client")
    bin_, lib = KIT / "bin", KIT / "lib"
    bin_.mkdir(exist_ok=True)
    lib.mkdir(exist_ok=True)
    shutil.copy(program, lib / name)
    needed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    for library in re.findall(r"=> (/\S+)", needed):
        if not OF_THE_SYSTEM.search(library):
            shutil.copy(library, lib)
    script = bin_ / name
    script.write_text(
        '#!/bin/sh\nlib="$(dirname "$0")/../lib"\n' + f'LD_LIBRARY_PATH="$lib" exec "$lib/{name}" "$@"\n',
        encoding="utf-8",
    )
    script.chmod(0o755)


if __name__ == "__main__":
    main()
