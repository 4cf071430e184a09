"""The accumulator of the examples, on the server that it is for."""

from pathlib import Path
from typing import Any

from tests.serving.live import Live, floats, serving
from tpx import examples
from tpx.protocol.tensors import Tensor


def test_each_sequence_has_a_sum_and_a_count_of_its_own(tmp_path: Path) -> None:
    examples.write(tmp_path, ["accumulator"])
    with serving(tmp_path) as live:
        for step in (1, 2, 3, 4):
            for sequence in (11, 12, 13):
                answer = ask(live, sequence, sequence * step, step)
                assert answer == {"SUM": sequence * step * (step + 1) / 2, "COUNT": step}


def ask(live: Live, sequence: int, number: float, step: int) -> dict[str, float]:
    parameters: Any = {"sequence_id": sequence, "sequence_start": step == 1, "sequence_end": step == 4}
    answer = live.infer_binary("accumulator", {"INPUT": floats([number])}, parameters=parameters)
    assert answer.status == 200, answer.body
    out, offset = {}, 0
    for item in answer.head["outputs"]:
        size = item["parameters"]["binary_data_size"]
        data = answer.tail[offset : offset + size]
        offset += size
        out[item["name"]] = Tensor(item["name"], item["datatype"], item["shape"], data).numpy().item()
    return out
