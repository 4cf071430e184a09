"""What serving costs beside DALI: JPEGs decoded, resized and normalised on the CPU, and in a bare loop.

The server takes one picture a request and makes batches of them; the loop has its batch at hand.
"""

import io
import json
import math
import shutil
import sys
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.clients.light import Exchange, LightClients
from benchmarks.payloads import Payload, check
from benchmarks.processes import Process, last_lines
from benchmarks.results import Cell, Sample, compare
from benchmarks.servers import Server, launch
from benchmarks.setting import Setting
from tpx.errors import MeasurementError

NAME = "dali"
TITLE = "Decoding JPEGs: served, and DALI in a bare loop (direct), batches of 16, two threads each"
SHOWN = ("throughput", "server_cpu_us", "p50_us", "failed")
ROWS = 16
CONCURRENCY = 2 * ROWS  # one batch is gathered while another one computes
SIDE = 224
SIZES = {"640x480": (640, 480), "1920x1080": (1920, 1080)}
CONFIG = f"""\
backend: "dali"
max_batch_size: {ROWS}
input [ {{ name: "encoded" data_type: TYPE_UINT8 dims: [ -1 ] allow_ragged_batch: true }} ]
output [ {{ name: "pixels" data_type: TYPE_FP32 dims: [ 3, {SIDE}, {SIDE} ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
dynamic_batching {{ }}
"""
DIRECT_S = 120.0


def run(setting: Setting) -> list[Cell]:
    """Pictures of two sizes, over HTTP."""
    try:
        repository = _repository(setting.work / "dali")
    except ImportError as exc:
        raise MeasurementError(f"DALI is not installed: {exc}") from exc
    cells = []
    for name, (width, height) in SIZES.items():
        cell = f"JPEG {name} http c={CONCURRENCY}"
        picture = _picture(setting.work / f"{name}.jpeg", width, height)
        sides = {
            "tpx": partial(_served, setting, repository, picture),
            "direct": partial(_direct, setting, repository, picture),
        }
        if setting.wants(cell):
            cells.append(compare(NAME, cell, sides, setting.rounds))
    return cells


def _repository(folder: Path) -> Path:
    import nvidia.dali as dali
    from nvidia.dali import fn, types

    @dali.pipeline_def(batch_size=ROWS, num_threads=2, device_id=None)
    def decode():  # type: ignore[no-untyped-def]
        encoded = fn.external_source(name="encoded", device="cpu", dtype=types.UINT8, ndim=1)
        image = fn.decoders.image(encoded, device="cpu", output_type=types.RGB)
        image = fn.resize(image, resize_x=SIDE, resize_y=SIDE)
        return fn.crop_mirror_normalize(
            image, dtype=types.FLOAT, output_layout="CHW", mean=[0.0] * 3, std=[255.0] * 3
        )

    shutil.rmtree(folder, ignore_errors=True)
    (folder / "decode" / "1").mkdir(parents=True)
    (folder / "decode" / "config.pbtxt").write_text(CONFIG, encoding="utf-8")
    decode().serialize(filename=str(folder / "decode" / "1" / "model.dali"))
    return folder


def _picture(path: Path, width: int, height: int) -> Path:
    """A picture with gradients and edges, as large as a photo of its size."""
    from PIL import Image

    x, y = np.meshgrid(np.arange(width), np.arange(height))
    planes = [(x * 255 // width), (y * 255 // height), 127 + 120 * np.sin(x / 9) * np.cos(y / 7)]
    file = io.BytesIO()
    Image.fromarray(np.stack(planes, axis=-1).astype(np.uint8)).save(file, "JPEG", quality=90)
    path.write_bytes(file.getvalue())
    return path


def _served(setting: Setting, repository: Path, picture: Path) -> Sample:
    data = picture.read_bytes()
    tensor = {
        "name": "encoded",
        "datatype": "UINT8",
        "shape": [1, len(data)],
        "parameters": {"binary_data_size": len(data)},
    }
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    headers = {
        "Content-Type": "application/octet-stream",
        "Inference-Header-Content-Length": str(len(head)),
    }
    request = Payload(path="/v2/models/decode/infer", headers=headers, body=head + data)
    with Server(launch("tpx", repository, setting.peers), setting.work) as server:
        server.wait_until_ready(["decode"])
        size = check(request, "http", server.port("http"), {})
        assert size > 4 * 3 * math.prod((SIDE, SIDE))
        exchange = Exchange(server=server, protocol="http", payload=request, answer_bytes=size)
        return LightClients(setting.peers, setting.work / "light").measure(
            exchange, CONCURRENCY, setting.seconds
        )


def _direct(setting: Setting, repository: Path, picture: Path) -> Sample:
    program = (sys.executable, "-m", "benchmarks.runtimes.dali_loop")
    arguments = (
        str(repository / "decode" / "1" / "model.dali"),
        str(picture),
        str(ROWS),
        str(setting.seconds),
    )
    with Process((*program, *arguments), setting.work / "dali.log") as process:
        status = process.wait(DIRECT_S)
        if status:
            raise MeasurementError(f"the direct loop ends with {status}: {last_lines(process.output)}")
        sample: Sample = json.loads(process.output)
        return sample
