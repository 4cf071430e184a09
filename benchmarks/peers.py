"""The peers, from published wheels: Triton with its python backend, perf_analyzer, Model Analyzer, MLServer.

Everything lands in one folder and is made only where it is missing; outside only apt packages are touched.
What cannot be had is said when it is first asked for; the rest of a run goes on without it.
"""

import ctypes
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from tpx.errors import MeasurementError

PYTRITON = "nvidia-pytriton==0.7.0"
"""The wheel that carries tritonserver 2.51 and its python backend."""
PERF_ANALYZER = ("tritonclient==2.51.0", "--platform", "manylinux1_x86_64")
"""Only the wheel of this platform carries the C++ program."""
CUDA_RUNTIME = "nvidia-cuda-runtime-cu12"
"""perf_analyzer is linked with libcudart, also where there is no GPU."""
MODEL_ANALYZER = "triton-model-analyzer==1.58.0"
AIPERF = "aiperf==0.13.0"
MLSERVER = "mlserver>=1.7,<1.8"
DEBIAN = {"wrk": "wrk", "h2load": "nghttp2-client", "gcc": "gcc"}
"""Programs, and the Debian packages they are in."""
INSTALL_S = 900.0


class Peers:
    """The folder, and what is in it. Every method raises MeasurementError where a peer cannot be had."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._refused: dict[str, str] = {}

    def tool(self, name: str) -> str:
        """Path of a program of `DEBIAN`."""
        self._once(name, lambda: _apt([DEBIAN[name]], unless=lambda: bool(shutil.which(name))))
        return str(shutil.which(name))

    def perf_analyzer(self) -> Path:
        self._once("perf_analyzer", self._install_perf_analyzer)
        return self.root / "lib" / "perf_analyzer"

    def perf_analyzer_env(self) -> Mapping[str, str]:
        return {"LD_LIBRARY_PATH": str(self.root / "lib")}

    def tritonserver(self) -> tuple[str | Path, ...]:
        """The program and the flags that say where its parts are."""
        self._once("tritonserver", self._install_triton)
        triton = self._triton
        return (
            triton / "bin" / "tritonserver",
            f"--backend-directory={self.root / 'backends'}",
            f"--cache-directory={triton / 'caches'}",
        )

    def triton_env(self) -> Mapping[str, str]:
        """Its libraries, our libpython for the model processes, and the Python packages for the models."""
        libraries = (self.root / "pytriton" / "nvidia_pytriton.libs", sysconfig.get_config_var("LIBDIR"))
        return {
            "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
            "PATH": f"{self.root / 'py' / 'bin'}:{os.environ['PATH']}",
        }

    def mlserver(self) -> Path:
        self._once("mlserver", lambda: self._venv("mlserver", (MLSERVER, _ours("onnxruntime"))))
        return self.root / "mlserver" / "bin" / "mlserver"

    def aiperf(self) -> Path:
        """The bin folder of its environment."""
        self._once("aiperf", lambda: self._venv("aiperf", (AIPERF,)))
        return self.root / "aiperf" / "bin"

    def model_analyzer(self) -> Path:
        """Model Analyzer, which needs perf_analyzer; both are made."""
        self.perf_analyzer()
        self._once("model_analyzer", lambda: self._venv("model_analyzer", (MODEL_ANALYZER,)))
        return self.root / "model_analyzer" / "bin" / "model-analyzer"

    def model_analyzer_env(self) -> Mapping[str, str]:
        """It calls perf_analyzer by its name."""
        return {**self.perf_analyzer_env(), "PATH": f"{self.root / 'lib'}:{os.environ['PATH']}"}

    @property
    def _triton(self) -> Path:
        return self.root / "pytriton" / "pytriton" / "tritonserver"

    def _once(self, name: str, install: Callable[[], None]) -> None:
        """Run `install`; a peer that was refused once is refused again without another try."""
        if name in self._refused:
            raise MeasurementError(self._refused[name])
        try:
            install()
        except MeasurementError as exc:
            self._refused[name] = exc.message
            raise

    def _install_perf_analyzer(self) -> None:
        program = self.root / "lib" / "perf_analyzer"
        _apt(["libb64-0d"], unless=lambda: _has_library("libb64.so.0d"))
        if program.is_file() and (program.parent / "libcudart.so.12").is_file():
            return
        program.parent.mkdir(parents=True, exist_ok=True)
        _extract(self._download(CUDA_RUNTIME), "libcudart.so.12", program.parent)
        _extract(self._download(*PERF_ANALYZER), "bin/perf_analyzer", program.parent)
        program.chmod(0o755)

    def _install_triton(self) -> None:
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        _apt([f"libpython{python}"], unless=lambda: _has_library(f"libpython{python}.so.1.0"))
        # with numpy 2 this Triton's python backend returns empty outputs, and no error
        self._venv("py", ("numpy<2", _ours("onnxruntime"), _ours("xllamacpp")))
        stub = self.root / "backends" / "python" / "triton_python_backend_stub"
        if stub.is_file():
            return
        with zipfile.ZipFile(self._download(PYTRITON)) as wheel:
            wheel.extractall(self.root / "pytriton")
        (self._triton / "bin" / "tritonserver").chmod(0o755)
        shutil.copytree(self._triton / "backends" / "python", stub.parent, dirs_exist_ok=True)
        ours = self._triton / "python_backend_stubs" / python / stub.name
        if not ours.is_file():
            raise MeasurementError(f"Triton's python backend has no stub for Python {python}: run with 3.11")
        shutil.copy(ours, stub)
        stub.chmod(0o755)

    def _venv(self, name: str, packages: Sequence[str]) -> None:
        """A virtual environment with these packages; a file in it says which it was made for."""
        directory, wanted = self.root / name, "\n".join(packages)
        made = directory / "packages.txt"
        if made.is_file() and made.read_text(encoding="utf-8") == wanted:
            return
        _say(f"installing {', '.join(packages)} into {directory}")
        if not (directory / "bin" / "python").is_file():
            _run([sys.executable, "-m", "venv", directory])
        _run([directory / "bin" / "python", "-m", "pip", "install", "-q", *packages])
        made.write_text(wanted, encoding="utf-8")

    def _download(self, requirement: str, *flags: str) -> Path:
        """The wheel of a requirement, without what it depends on."""
        wheels = self.root / "wheels"
        pattern = requirement.partition("==")[0].replace("-", "_") + "-*.whl"
        if not list(wheels.glob(pattern)):
            _say(f"downloading {requirement}")
            pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
            _run([*pip, "--only-binary=:all:", "-d", wheels, *flags, requirement])
        return next(wheels.glob(pattern))


def _ours(package: str) -> str:
    """Our own version: the peers compute with the same library."""
    return f"{package}=={version(package)}"


def _apt(packages: Sequence[str], *, unless: Callable[[], bool]) -> None:
    if unless():
        return
    command = f"apt-get install -y {' '.join(packages)}"
    if not shutil.which("apt-get") or os.geteuid() != 0:
        raise MeasurementError(f"{', '.join(packages)} is missing; as root on Debian: {command}")
    _say(command)
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    _run(["apt-get", "update", "-qq"], quiet)
    _run(["apt-get", "install", "-y", "-qq", *packages], quiet)
    if not unless():
        raise MeasurementError(f"`{command}` did not bring what was missing")


def _has_library(filename: str) -> bool:
    """Whether the dynamic linker finds it, or it lies beside our own Python's."""
    if (Path(str(sysconfig.get_config_var("LIBDIR"))) / filename).exists():
        return True
    try:
        ctypes.CDLL(filename)
    except OSError:
        return False
    return True


def _extract(wheel: Path, ending: str, directory: Path) -> None:
    """Write the wheel's one file whose path ends so into the directory."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(ending):
                (directory / Path(name).name).write_bytes(archive.read(name))
                return
    raise MeasurementError(f"{wheel.name} has no file '{ending}'")


def _run(argv: Sequence[str | Path], env: Mapping[str, str] | None = None) -> None:
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=INSTALL_S, env={**os.environ, **(env or {})}
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise MeasurementError(f"`{' '.join(words)}` failed: {exc}") from exc
    if done.returncode:
        raise MeasurementError(f"`{' '.join(words)}` failed: {done.stderr.strip()[-500:]}")


def _say(what: str) -> None:
    print(f"  {what} ...", file=sys.stderr, flush=True)
