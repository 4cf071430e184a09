"""What serving costs beside PyTorch on a GPU, and how tensors of 600 KB get there.

The network has ResNet-50's size and no trained weights. `make gpu-kit` carries this bench to a GPU machine;
with TPX_GPU_REHEARSAL=1 a network a sixteenth as wide runs on the CPU, so that the bench itself is tried.
"""

import json
import os
import shutil
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.clients.load_tools import Load, tpx_perf
from benchmarks.models import Model, Served, Tensor
from benchmarks.processes import Process, last_lines
from benchmarks.results import Cell, Sample, compare
from benchmarks.runtimes.resnet import resnet
from benchmarks.servers import Server, launch
from benchmarks.setting import Setting
from tpx.errors import MeasurementError

NAME = "gpu"
TITLE = "ResNet-50 on a GPU: served, and PyTorch in a bare loop (direct); tensors of 600 KB"
SHOWN = ("throughput", "p50_us", "p99_us", "server_cpu_us", "failed")
DIRECT_S = 120.0
LARGE = 150_000
"""Elements of FP32: 600 KB."""
MODEL = Model(
    name="resnet", inputs=(Tensor(name="x", dims=(3, 224, 224)),), outputs=(Tensor(name="y", dims=(1000,)),)
)
COPY = Model(
    name="copy", inputs=(Tensor(name="x", dims=(LARGE,)),), outputs=(Tensor(name="y", dims=(LARGE,)),)
)
IO = (
    'backend: "pytorch" max_batch_size: {rows} input [{{ name: "x" data_type: {type} dims: [{dims}] }}] '
    'output [{{ name: "y" data_type: {type} dims: [{out}] }}] instance_group [{{ kind: {kind} count: 1 }}] '
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large everything is: on a GPU, or in a rehearsal on the CPU."""

    device: str
    kind: str
    width: int
    side: int
    datatypes: tuple[str, ...]
    batches: tuple[int, ...]
    shared: str
    """The shared memory that large tensors go through."""


GPU = Scale(
    device="cuda:0",
    kind="KIND_GPU",
    width=64,
    side=224,
    datatypes=("FP16", "BF16"),
    batches=(1, 8, 64),
    shared="cuda",
)
CPU = Scale(
    device="cpu", kind="KIND_CPU", width=4, side=64, datatypes=("FP32",), batches=(1, 4), shared="system"
)


def run(setting: Setting) -> list[Cell]:
    """Each datatype and batch, then 600 KB over every way in."""
    try:
        import torch
    except ImportError as exc:
        raise MeasurementError(f"PyTorch is not installed: {exc}") from exc
    if torch.cuda.is_available():
        scale = GPU
    elif os.environ.get("TPX_GPU_REHEARSAL") == "1":
        scale = CPU
    else:
        raise MeasurementError("no GPU that PyTorch can use")
    cells = []
    for datatype in scale.datatypes:
        repository = _resnet_repository(setting.work / f"gpu_{datatype}", datatype, scale)
        for rows in scale.batches:
            name = f"resnet {datatype} batch {rows}"
            flags = (
                "-b",
                str(rows),
                "--shared-memory",
                scale.shared,
                "--output-shared-memory-size",
                "1000000",
            )
            for concurrency in (1, 4):
                cell = f"{name} c={concurrency}"
                sides = {
                    "tpx": partial(_served, setting, repository, MODEL, "grpc", concurrency, flags),
                    "direct": partial(_direct, setting, repository, scale, rows),
                }
                if setting.wants(cell):
                    cells.append(compare(NAME, cell, sides, setting.rounds))
    cells += _large(setting, scale)
    return cells


def _large(setting: Setting, scale: Scale) -> list[Cell]:
    repository = _copy_repository(setting.work / "gpu_copy", scale)
    ways = {
        "http": (),
        "grpc": (),
        "system": ("--shared-memory", "system"),
        "cuda": ("--shared-memory", "cuda"),
    }
    cells = []
    for way, flags in ways.items():
        if way == "cuda" and scale.shared != "cuda":
            continue
        protocol = "http" if way == "http" else "grpc"
        more = (*flags, "--output-shared-memory-size", str(4 * LARGE)) if flags else ()
        for concurrency in (1, 4):
            sides = {"tpx": partial(_served, setting, repository, COPY, protocol, concurrency, more)}
            cells.append(compare(NAME, f"600 KB {way} c={concurrency}", sides, setting.rounds))
    return cells


def _resnet_repository(folder: Path, datatype: str, scale: Scale) -> Path:
    import torch

    torch.manual_seed(0)
    types = {"FP32": torch.float32, "FP16": torch.float16, "BF16": torch.bfloat16}
    network = resnet(scale.width).to(scale.device, types[datatype]).eval()
    example = torch.zeros(1, 3, scale.side, scale.side, device=scale.device, dtype=types[datatype])
    config = IO.format(
        rows=64, type=f"TYPE_{datatype}", dims=f"3, {scale.side}, {scale.side}", out=1000, kind=scale.kind
    )
    with torch.inference_mode():
        return _written(folder, MODEL.name, config, torch.jit.trace(network, example))


def _copy_repository(folder: Path, scale: Scale) -> Path:
    import torch

    config = IO.format(rows=1, type="TYPE_FP32", dims=LARGE, out=LARGE, kind=scale.kind)
    program = torch.jit.trace(lambda x: x + 1, torch.zeros(1, LARGE, device=scale.device))
    return _written(folder, COPY.name, config, program)


def _written(folder: Path, name: str, config: str, program: object) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / name / "1").mkdir(parents=True)
    (folder / name / "config.pbtxt").write_text(config, encoding="utf-8")
    program.save(str(folder / name / "1" / "model.pt"))  # type: ignore[attr-defined]
    return folder


def _served(
    setting: Setting, repository: Path, model: Model, protocol: str, concurrency: int, flags: tuple[str, ...]
) -> Sample:
    with Server(launch("tpx", repository, setting.peers), setting.work) as server:
        server.wait_until_ready([model.name])
        load = Load(
            server=server,
            served=Served(model=model),
            protocol="http" if protocol == "http" else "grpc",
            seconds=setting.seconds,
            concurrency=concurrency,
        )
        return tpx_perf(setting.work, *flags).measure(load, setting.work)


def _direct(setting: Setting, repository: Path, scale: Scale, rows: int) -> Sample:
    archive = repository / MODEL.name / "1" / "model.pt"
    program = (sys.executable, "-m", "benchmarks.runtimes.resnet")
    arguments = (str(archive), scale.device, str(rows), str(scale.side), str(setting.seconds))
    with Process((*program, *arguments), setting.work / "gpu_direct.log") as process:
        status = process.wait(DIRECT_S)
        if status:
            raise MeasurementError(f"the direct loop ends with {status}: {last_lines(process.output)}")
        sample: Sample = json.loads(process.output.strip().splitlines()[-1])
        return sample
