"""Installs tpx with each extra into an empty environment, and prints what it takes there as a table.

Needs uv and an index. `python tools/install_sizes.py [EXTRA ...]`; without arguments all extras of the table
in the README that any machine can install.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

EXTRAS = (
    *("", "onnx", "openvino", "report", "cpu", "clients", "cloud", "decrypt", "otel", "pandas", "optuna"),
    *("cluster", "llm", "openvino-genai"),
)
ROOT = Path(__file__).parents[1]


def measure(extra: str) -> tuple[int, int]:
    """Return the number of packages and their size in bytes, without Python itself and pip."""
    with tempfile.TemporaryDirectory() as directory:
        python = Path(directory) / "bin" / "python"
        uv = [sys.executable, "-m", "uv"]
        subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, directory], check=True)
        wanted = f"{ROOT}[{extra}]" if extra else str(ROOT)
        subprocess.run([*uv, "pip", "install", "--quiet", "--python", str(python), wanted], check=True)
        packages = next(Path(directory).glob("lib/python*/site-packages"))
        installed = sum(1 for _ in packages.glob("*.dist-info"))
        size = sum(file.lstat().st_size for file in packages.rglob("*") if file.is_file())
    return installed, size


def main() -> None:
    """Print a row per extra."""
    print("| extra | packages | MB |\n| --- | --- | --- |")
    for extra in sys.argv[1:] or EXTRAS:
        packages, size = measure(extra)
        print(f"| {f'`[{extra}]`' if extra else 'none'} | {packages} | {size / 1e6:.0f} |", flush=True)


if __name__ == "__main__":
    main()
