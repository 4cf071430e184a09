"""What serving costs beside PyTorch: a small convolutional network, served and in a bare loop.

What counts is processor time of the process for each call, which a busy machine distorts less than the clock.
Each
sample is a process of its own. The bare loop has nothing else to do: arrays in, arrays out, no wire.
"""

import json
import shutil
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy.typing as npt

from benchmarks.clients.light import Exchange, LightClients
from benchmarks.models import Model, Served, Tensor
from benchmarks.payloads import Protocol, check, inputs, payload
from benchmarks.processes import Process, last_lines
from benchmarks.results import Cell, Sample, compare
from benchmarks.servers import Server, launch
from benchmarks.setting import Setting
from tpx.errors import MeasurementError

NAME = "pytorch"
TITLE = "A small convolutional network: served, and PyTorch in a bare loop (direct), one thread each"
SHOWN = ("throughput", "server_cpu_us", "p50_us", "failed")
ROWS = (1, 8)
MODEL = Model(
    name="convolution",
    inputs=(Tensor(name="input", dims=(3, 32, 32)),),
    outputs=(Tensor(name="OUTPUT__0", dims=(10,)),),
)
CONFIG = """\
backend: "pytorch"
max_batch_size: 8
instance_group [ { kind: KIND_CPU count: 1 } ]
parameters { key: "INTRA_OP_THREAD_COUNT" value { string_value: "1" } }
"""
DIRECT_S = 60.0
PROTOCOLS: tuple[Protocol, ...] = ("grpc", "http")

Right = Mapping[int, Mapping[str, npt.NDArray[Any]]]


def run(setting: Setting) -> list[Cell]:
    """One row and eight rows a request, over both protocols, one request in flight."""
    try:
        repository, right = _repository(setting.work / "pytorch")
    except ImportError as exc:
        raise MeasurementError(f"PyTorch is not installed: {exc}") from exc
    cells = []
    for rows in ROWS:
        for protocol in PROTOCOLS:
            name = f"convolution {protocol} c=1, batch {rows}"
            sides = {
                "tpx": partial(_served, setting, repository, protocol, rows, right),
                "direct": partial(_direct, setting, repository, rows),
            }
            if setting.wants(name):
                cells.append(compare(NAME, name, sides, setting.rounds))
    return cells


def _repository(folder: Path) -> tuple[Path, Right]:
    """The model, and its answers by the number of rows."""
    import torch
    from torch import nn

    shutil.rmtree(folder, ignore_errors=True)
    archive = folder / MODEL.name / "1" / "model.pt2"
    archive.parent.mkdir(parents=True)
    (folder / MODEL.name / "config.pbtxt").write_text(CONFIG, encoding="utf-8")
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    ).eval()
    batch = torch.export.Dim("batch", min=1, max=8)
    program = torch.export.export(network, (torch.zeros(2, 3, 32, 32),), dynamic_shapes=({0: batch},))
    torch.export.save(program, archive)
    right = {}
    with torch.inference_mode():
        for rows in ROWS:
            image = torch.from_numpy(inputs(MODEL, rows)["input"])
            right[rows] = {"OUTPUT__0": network(image).numpy()}
    return folder, right


def _served(setting: Setting, repository: Path, protocol: Protocol, rows: int, right: Right) -> Sample:
    """wrk or h2load with one request in flight, on a server of its own."""
    served = Served(model=MODEL)
    with Server(launch("tpx", repository, setting.peers), setting.work) as server:
        server.wait_until_ready([served.name])
        request = payload(served, protocol, rows)
        size = check(request, protocol, server.port(protocol), right[rows])
        exchange = Exchange(server=server, protocol=protocol, payload=request, answer_bytes=size)
        return LightClients(setting.peers, setting.work / "light").measure(exchange, 1, setting.seconds)


def _direct(setting: Setting, repository: Path, rows: int) -> Sample:
    archive = repository / MODEL.name / "1" / "model.pt2"
    program = (sys.executable, "-m", "benchmarks.runtimes.torch_loop")
    arguments = (str(archive), "1", str(rows), str(setting.seconds))
    with Process((*program, *arguments), setting.work / "direct.log") as process:
        status = process.wait(DIRECT_S)
        if status:
            raise MeasurementError(f"the direct loop ends with {status}: {last_lines(process.output)}")
        sample: Sample = json.loads(process.output)
        return sample
