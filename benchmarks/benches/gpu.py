"""What serving costs beside PyTorch on a GPU, and how tensors of 600 KB get there.

The network has ResNet-50's size and no trained weights. `make gpu-kit` carries this bench to a GPU machine;
with TPX_GPU_REHEARSAL=1 a network a sixteenth as wide runs on the CPU, so that the bench itself is tried.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal

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
MODELS = {
    datatype: Model(
        name=f"resnet_{datatype}",
        inputs=(Tensor(name="x", dims=(3, 224, 224)),),
        outputs=(Tensor(name="y", dims=(1000,)),),
    )
    for datatype in ("FP32", "FP16", "BF16")
}
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
    repository = setting.work / "gpu_models"
    shutil.rmtree(repository, ignore_errors=True)
    for datatype in scale.datatypes:
        _write_resnet(repository, datatype, scale)
    _write_copy(repository, scale)
    with Server(launch("tpx", repository, setting.peers), setting.work) as server:
        names = [MODELS[datatype].name for datatype in scale.datatypes]
        server.wait_until_ready([*names, COPY.name])
        return [*_resnets(setting, server, repository, scale), *_large(setting, server, scale)]


def _resnets(setting: Setting, server: Server, repository: Path, scale: Scale) -> Iterator[Cell]:
    shared = ("--shared-memory", scale.shared, "--output-shared-memory-size", "1000000")
    for datatype, rows, concurrency in product(scale.datatypes, scale.batches, (1, 4)):
        cell = f"resnet {datatype} batch {rows} c={concurrency}"
        model, flags = MODELS[datatype], ("-b", str(rows), *shared)
        sides = {
            "tpx": partial(_served, setting, server, model, "grpc", concurrency, flags),
            "direct": partial(_direct, setting, repository / model.name, scale, rows),
        }
        if setting.wants(cell):
            yield compare(NAME, cell, sides, setting.rounds)


def _large(setting: Setting, server: Server, scale: Scale) -> Iterator[Cell]:
    ways: dict[str, tuple[str, ...]] = {"http": (), "grpc": ()}
    for shared in dict.fromkeys(("system", scale.shared)):
        ways[shared] = ("--shared-memory", shared, "--output-shared-memory-size", str(4 * LARGE))
    for (way, flags), concurrency in product(ways.items(), (1, 4)):
        protocol: Literal["http", "grpc"] = "http" if way == "http" else "grpc"
        cell = f"600 KB {way} c={concurrency}"
        sides = {"tpx": partial(_served, setting, server, COPY, protocol, concurrency, flags)}
        if setting.wants(cell):
            yield compare(NAME, cell, sides, setting.rounds)


def _write_resnet(repository: Path, datatype: str, scale: Scale) -> None:
    import torch

    torch.manual_seed(0)
    types = {"FP32": torch.float32, "FP16": torch.float16, "BF16": torch.bfloat16}
    network = resnet(scale.width).to(scale.device, types[datatype]).eval()
    example = torch.zeros(1, 3, scale.side, scale.side, device=scale.device, dtype=types[datatype])
    config = IO.format(
        rows=64, type=f"TYPE_{datatype}", dims=f"3, {scale.side}, {scale.side}", out=1000, kind=scale.kind
    )
    # PyTorch optimizes while it runs the first requests of a shape
    dims = f"3, {scale.side}, {scale.side}"
    zeros = f'inputs {{ key: "x" value {{ data_type: TYPE_{datatype} dims: [{dims}] zero_data: true }} }}'
    for rows in scale.batches:
        config += f'model_warmup {{ name: "{rows}" batch_size: {rows} count: 5 {zeros} }} '
    with torch.inference_mode():
        _write(repository / MODELS[datatype].name, config, torch.jit.trace(network, example))


def _write_copy(repository: Path, scale: Scale) -> None:
    import torch

    config = IO.format(rows=1, type="TYPE_FP32", dims=LARGE, out=LARGE, kind=scale.kind)
    program = torch.jit.trace(lambda x: x + 1, torch.zeros(1, LARGE, device=scale.device))
    _write(repository / COPY.name, config, program)


def _write(folder: Path, config: str, program: Any) -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(config, encoding="utf-8")
    program.save(str(folder / "1" / "model.pt"))


def _served(
    setting: Setting,
    server: Server,
    model: Model,
    protocol: Literal["http", "grpc"],
    concurrency: int,
    flags: tuple[str, ...],
) -> Sample:
    load = Load(
        server=server,
        served=Served(model=model),
        protocol=protocol,
        seconds=setting.seconds,
        concurrency=concurrency,
    )
    return tpx_perf(setting.work, *flags).measure(load, setting.work)


def _direct(setting: Setting, folder: Path, scale: Scale, rows: int) -> Sample:
    archive = folder / "1" / "model.pt"
    program = (sys.executable, "-m", "benchmarks.runtimes.resnet")
    arguments = (str(archive), scale.device, str(rows), str(scale.side), str(setting.seconds))
    with Process((*program, *arguments), setting.work / "gpu_direct.log") as process:
        status = process.wait(DIRECT_S)
        if status:
            raise MeasurementError(f"the direct loop ends with {status}: {last_lines(process.output)}")
        sample: Sample = json.loads(process.output.strip().splitlines()[-1])
        return sample
