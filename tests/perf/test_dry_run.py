"""`--dry-run`: what would be done, and what one request gives."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.perf.servers import Behaviour, http_server
from tests.serving.live import Live, serving, write_models
from tpx.cli.perf import main


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository: Path = tmp_path_factory.mktemp("models")
    write_models(repository)
    with serving(repository) as server:
        yield server


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_plan_is_told_and_one_request_is_sent(
    live: Live, capsys: pytest.CaptureFixture[str], protocol: str
) -> None:
    port = live.ports["HTTPService" if protocol == "http" else "GRPCInferenceService"]
    before = live.get("/v2/models/double/stats").json["model_stats"][0]["inference_count"]
    words = ["-m", "double", "-i", protocol, "-u", f"127.0.0.1:{port}", "--shape", "x:3", "-b", "2"]
    assert main([*words, "--dry-run", "--concurrency-range", "1:4:2", "--seed", "7"]) == 0
    told = capsys.readouterr().out
    for line in (
        f"at 127.0.0.1:{port}, triton over {protocol}",
        "Model: double (onnxruntime_onnx), max_batch_size",
        "Data: random: 1 stream with 2 steps",
        "  x FP32 [2, 3]",
        "Load: concurrency 1:4:2",
        "Seed: 7",
        "  concurrency 3: seed ",
        "Probe: answered in ",
        "  y FP32 [2, 3]",
    ):
        assert line in told
    after = live.get("/v2/models/double/stats").json["model_stats"][0]["inference_count"]
    assert after - before == 2


def test_the_servers_words_are_told_where_the_request_fails(capsys: pytest.CaptureFixture[str]) -> None:
    with http_server(Behaviour(status=lambda _: 503)) as url:
        assert main(["-m", "net", "-u", url, "--dry-run"]) == 99
    assert "Probe: failed after" in (told := capsys.readouterr().out)
    assert "HTTP 503: failed on purpose with 503" in told


def test_an_output_that_is_not_as_expected_fails_the_rehearsal(
    live: Live, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "data.json"
    path.write_text(json.dumps({"data": [{"x": [1]}], "validation_data": [{"y": [3]}]}))
    words = ["-m", "double", "-u", f"127.0.0.1:{live.http_port}", "--input-data", str(path), "--dry-run"]
    assert main(words) == 99
    told = capsys.readouterr().out
    assert "Outputs: compared with validation_data, exactly" in told
    assert "element 0 is 2.0, expected 3.0" in told
    assert main([*words, "--tolerance", "1.5"]) == 0


def test_the_same_seed_plans_the_same_seeds_for_the_levels(capsys: pytest.CaptureFixture[str]) -> None:
    def seeds(seed: str) -> list[str]:
        with http_server(Behaviour()) as url:
            main(["-m", "net", "-u", url, "--dry-run", "--seed", seed, "--concurrency-range", "1,2"])
        return [line for line in capsys.readouterr().out.splitlines() if ": seed " in line]

    assert len(set(seeds("1"))) == 2
    assert seeds("1") == seeds("1")
    assert seeds("1") != seeds("2")
