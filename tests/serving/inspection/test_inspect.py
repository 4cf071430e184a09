"""What is found of backends that work, that are missing, that are broken, and that hang."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.serving.inspection.conftest import Site
from tests.waiting import eventually
from tpx.serving.backends.table import KNOWN
from tpx.serving.extensions import BuiltIn
from tpx.serving.inspection.inspect import InspectedPart, Usability, inspect, without_gpu

MINE = """
class Mine:
    default_filename = ""
    def open(self, files, config): ...
    def default_instance_count(self, kind): return 1
"""
DESCRIBED = f"""
from tpx.serving.backends.contract import Description
{MINE}
    def describe(self):
        print("a library that talks on stdout")
        has = {{{{"version": "7.1", "providers": ("fast", "slow"), "devices": ("xpu:0",)}}}}
        return Description(**has, lacks={{!r}}, remedy={{!r}})
"""


def found(name: str, timeout_s: float = 20) -> InspectedPart:
    finding = inspect(timeout_s=timeout_s).finding(name)
    assert finding is not None
    return finding


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_what_works_tells_version_and_providers_and_the_machine_is_described() -> None:
    announced: list[str] = []
    inspection = inspect(timeout_s=20, observe=announced.append)
    onnx = inspection.finding("onnxruntime")
    assert onnx is not None
    assert onnx.state is Usability.USABLE
    assert "CPUExecutionProvider" in onnx.providers
    assert onnx.version
    assert not onnx.remedy
    machine = inspection.machine
    assert machine.cores >= 1
    assert machine.memory_bytes > machine.memory_available_bytes > 0
    assert machine.executable == sys.executable
    assert bool(machine.gpus) != bool(machine.gpu_note)
    assert [each.name for each in inspection.features] == ["gpu", "uvloop"]
    assert sorted(announced) == ["gpu", "onnxruntime", "uvloop"]


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_nothing_heavy_is_imported_here(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.partition(".")[0] == "uvloop"]:
        monkeypatch.delitem(sys.modules, module)
    assert found("uvloop").state is Usability.USABLE
    assert "uvloop" not in sys.modules


@pytest.mark.usefixtures("few")
def test_a_package_that_is_missing_is_told_with_the_command_that_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert found("onnxruntime") == InspectedPart(
        name="onnxruntime",
        state=Usability.MISSING,
        why="the package onnxruntime is not installed",
        remedy="pip install 'tpx[onnx]'",
    )


@pytest.mark.usefixtures("none")
@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("tensorrt", ""),
        ("gpu", ""),
        ("pytorch", "uv pip install 'tpx[x]' --torch-backend cpu"),
        ("pdf", "pip install 'tpx[x]'"),
    ],
)
def test_without_a_gpu_no_package_for_gpus_is_suggested(name: str, remedy: str) -> None:
    missing = InspectedPart(
        name=name, state=Usability.MISSING, why="no package", remedy="pip install 'tpx[x]'"
    )
    assert without_gpu(missing).remedy == remedy
    broken = replace(missing, state=Usability.BROKEN)
    assert without_gpu(broken) == broken


@pytest.mark.usefixtures("none")
def test_a_backend_of_a_package_is_found_with_the_version_of_its_package(site: Site) -> None:
    site.add(MINE)
    assert found("mine") == InspectedPart(
        name="mine", state=Usability.USABLE, origin="mine-backend 1.0", version="1.0"
    )


@pytest.mark.usefixtures("none")
def test_a_backend_says_of_itself_what_it_has(site: Site) -> None:
    site.add(DESCRIBED.format("", "buy one"))
    mine = found("mine")
    assert (mine.state, mine.version, mine.providers, mine.devices) == (
        Usability.USABLE, "7.1", ("fast", "slow"), ("xpu:0",),
    )  # fmt: skip
    assert mine.remedy == ""


@pytest.mark.usefixtures("none")
def test_a_backend_says_of_itself_what_it_lacks(site: Site) -> None:
    site.add(DESCRIBED.format("there is no xpu", "buy one"))
    mine = found("mine")
    assert (mine.state, mine.why, mine.remedy) == (Usability.UNUSABLE, "there is no xpu", "buy one")


@pytest.mark.usefixtures("none")
@pytest.mark.parametrize(
    ("source", "why", "remedy"),
    [
        (
            "import ctypes\nctypes.CDLL('libmissing.so.12')",
            "backend 'mine' is added by the package mine-backend 1.0 (entry point mine_backend:Mine), which "
            "cannot be imported: OSError: libmissing.so.12: cannot open shared object file: No such file or "
            "directory",
            "pip install --force-reinstall mine-backend",
        ),
        (
            f"{MINE}    def describe(self): return 1 / 0",
            "ZeroDivisionError: division by zero",
            "pip install --force-reinstall mine-backend",
        ),
        (
            "import os\nos.abort()",
            "it crashed, SIGABRT",
            "python -X faulthandler -c 'import mine_backend'",
        ),
        (
            "import os, sys\nsys.stderr.write('no licence\\n')\nsys.stderr.flush()\nos._exit(3)",
            "it ended the process with status 3: no licence",
            "python -X faulthandler -c 'import mine_backend'",
        ),
    ],
)
def test_a_backend_that_is_broken_is_told_with_its_cause(
    site: Site, source: str, why: str, remedy: str
) -> None:
    site.add(source)
    mine = found("mine")
    assert (mine.state, mine.why, mine.remedy) == (Usability.BROKEN, why, remedy)


@pytest.mark.slow
@pytest.mark.usefixtures("none")
def test_an_import_that_hangs_is_ended_with_all_that_it_started(site: Site, tmp_path: Path) -> None:
    site.add(
        "import pathlib, subprocess\n"
        f"started = subprocess.Popen(['sleep', '60'])\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(started.pid))\n"
        "started.wait()"
    )
    mine = found("mine", timeout_s=5)
    assert (mine.state, mine.why) == (Usability.BROKEN, "it did not come to an end within 5 s")
    command = Path(f"/proc/{(tmp_path / 'pid').read_text()}/cmdline")
    eventually(lambda: not command.exists() or not command.read_bytes())


@pytest.mark.usefixtures("none")
def test_two_packages_with_one_name_are_both_told(site: Site) -> None:
    site.add(MINE)
    site.add(MINE, package="other-backend")
    mine = found("mine")
    assert mine.state is Usability.BROKEN
    assert "uninstall all but one of them" in mine.why


@pytest.mark.usefixtures("none")
def test_python_based_backends_are_listed(tmp_path: Path) -> None:
    runtime = tmp_path / "backends" / "vllm" / "model.py"
    runtime.parent.mkdir(parents=True)
    runtime.touch()
    inspection = inspect(timeout_s=20, backend_directory=tmp_path / "backends")
    assert inspection.finding("vllm") == InspectedPart(
        name="vllm", state=Usability.USABLE, origin=str(runtime)
    )


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_a_file_of_the_working_directory_is_not_taken_for_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "uvloop.py").write_text("raise RuntimeError('not me')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path and path != os.curdir])
    assert found("uvloop").state is Usability.USABLE


@pytest.mark.usefixtures("few")
def test_a_package_within_one_that_is_not_installed_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    known = BuiltIn("nowhere.at:All", "nowhere.at.all", "pip install nowhere")
    monkeypatch.setitem(KNOWN, "onnxruntime", known)
    assert found("onnxruntime").state is Usability.MISSING
