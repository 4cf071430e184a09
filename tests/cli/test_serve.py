"""`tpx serve` in this process: wrong command lines, and what the table of models shows."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving.onnx_files import doubling, write_model
from tpx.cli.serve import main

ANY_PORTS = ("--http-port=0", "--grpc-port=0", "--metrics-port=0")

WRONG = [
    (
        ["--http-port=7000", "--grpc-port=7000"],
        "cannot listen to HTTP requests and GRPC requests at the same",
    ),
    (
        ["--http-port=7000", "--grpc-port=7000", "--metrics-port=7000"],
        "at the same address and port 127.0.0.1:7000; The server cannot listen to ",
    ),
    (["--http-port=7001", "--metrics-port=7001"], "cannot listen to HTTP requests and metrics requests"),
    (["--max-connections=0"], "--max-connections must be at least 1, got 0"),
    (["--grpc-max-message-size=0"], "--grpc-max-message-size must be at least 1, got 0"),
    (["--id"], "Missing value for option '--id'"),
    (["-z"], "Invalid short option '-z'"),
    (["/nowhere/models"], "cannot read model repository '/nowhere/models': No such file or directory"),
    ([str(Path(__file__).parents[2] / "LICENSE")], "is neither a model file that tpx knows"),
    (["--backend-config=threads"], "--backend-config must be [<backend>,]<key>=<value>, got 'threads'"),
    (["--metrics-config=summaries"], "--metrics-config option format is '<setting>=<value>'. Got summaries"),
    (["--metrics-config=summary_latency=1"], "unknown setting 'summary_latency' (did you mean"),
    (["--http-use-ssl"], "--http-use-ssl needs --http-server-cert and --http-server-key"),
    (["--grpc-use-ssl", "--grpc-server-cert=/nowhere"], "--grpc-use-ssl needs --grpc-server-cert and"),
    (["--grpc-use-ssl-mutual"], "--grpc-use-ssl-mutual needs --grpc-root-cert"),
    (
        ["--http-use-ssl", f"--http-server-cert={__file__}", f"--http-server-key={__file__}"],
        "cannot use the http certificate",
    ),
    (["--load-model=net"], "Use of '--load-model' requires setting '--model-control-mode=explicit'"),
    (
        ["--model-control-mode=explicit", "--load-model=*", "--load-model=net"],
        "Wildcard model name '*' must be the ONLY startup model if specified at all.",
    ),
    (["--model-control-mode=explicit", "--load-model=absent"], "failed to load 1 of 1 models: absent"),
    (["--model-config-name="], "empty argument for --model-config-name"),
    (["--model-config-name=../a"], "no spaces and no slashes"),
    (["--http-address=no.such.host.invalid"], "Socket 'no.such.host.invalid:"),
    (["--http-address=192.0.2.1"], "Socket '192.0.2.1:"),
]


@pytest.mark.parametrize(("words", "message"), WRONG, ids=[" ".join(words)[:40] for words, _ in WRONG])
def test_a_wrong_command_line_is_told_what_is_wrong(
    tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path, "net", doubling())
    assert main([f"--model-repository={tmp_path}", *ANY_PORTS, *words]) == 1
    err = capsys.readouterr().err
    assert "error: creating server: " in err
    assert message in err
    assert "Traceback" not in err


def test_variables_are_options_but_not_those_of_kubernetes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TPX_SERVE_MODEL_REPOSITORY", "/nowhere/models")
    monkeypatch.setenv("TPX_SERVE_HTTP_THREAD_COUNT", "9")
    monkeypatch.setenv("TPX_SERVE_METRIC_PORT", "9")
    monkeypatch.setenv("TPX_SERVE_GRPC_PORT", "tcp://10.0.0.1:80")
    monkeypatch.setenv("TPX_SERVE_PORT", "tcp://10.0.0.1:80")
    assert main(ANY_PORTS) == 1
    assert capsys.readouterr().err.splitlines() == [
        "Warning: unknown environment variable 'TPX_SERVE_METRIC_PORT' (did you mean "
        "'TPX_SERVE_METRICS_PORT'?)",
        "Warning: TPX_SERVE_GRPC_PORT=tcp://10.0.0.1:80 is ignored: Kubernetes sets it for a Service of that "
        "name",
        "Warning: '--http-thread-count' has no effect: one event loop serves all connections",
        "error: creating server: Invalid argument - cannot read model repository '/nowhere/models': No such "
        "file or directory",
    ]


def test_a_shown_configuration_is_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "serve.toml").write_text('http_restricted_api = ["inference:X-Key=abc"]\n', encoding="utf-8")
    monkeypatch.setenv("TPX_SERVE_OPENAI_RESTRICTED_API", "inference:X-Key=abc\nhealth:X-Key=env:KEY")
    monkeypatch.setenv("TPX_SERVE_HTP_PORT", "9001")
    assert main(["-f", str(tmp_path / "serve.toml"), "--http-port=9000", "--show-config"]) == 0
    out, err = capsys.readouterr()
    assert "unknown environment variable 'TPX_SERVE_HTP_PORT' (did you mean 'TPX_SERVE_HTTP_PORT'" in err
    shown = {line.partition("  # ")[0].strip(): line.rpartition("# ")[2] for line in out.splitlines()}
    assert shown["http_port: 9000"] == "--http-port"
    assert shown["# grpc_port: 8001"] == "default"
    assert shown["# http_restricted_api: ['inference:X-Key=***']"] == str(tmp_path / "serve.toml")
    keys = "['inference:X-Key=***', 'health:X-Key=env:KEY']"
    assert shown[f"# openai_restricted_api: {keys}"] == "TPX_SERVE_OPENAI_RESTRICTED_API"


def test_certificates_are_missed_before_models_are_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path, "net", doubling())
    assert main([f"--model-repository={tmp_path}", *ANY_PORTS, "--grpc-use-ssl"]) == 1
    assert "loading" not in capsys.readouterr().out


def test_a_repository_that_is_not_there_is_told_without_empty_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"--model-repository={tmp_path}/modles", *ANY_PORTS]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)


def test_without_onnx_runtime_a_model_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    write_model(tmp_path, "net", doubling())
    assert main([f"--model-repository={tmp_path}", *ANY_PORTS]) == 1
    assert "needs the package onnxruntime: pip install 'tpx[onnx]'" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["[bold]", "[red]net", ":smile:", "ü" * 90])
def test_the_table_shows_names_as_they_are_and_reasons_whole(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "models"
    write_model(directory, name, config="max_batch_size: -1")
    assert main([f"--model-repository={directory}", *ANY_PORTS]) == 1
    out = capsys.readouterr().out
    out = out[out.index("| Model ") :]
    reason = f"UNAVAILABLE: Invalid argument: 'max_batch_size' must be non-negative value for {name}"
    [line] = [line for line in out.splitlines() if reason in line]
    assert line.split(" | ")[0] == f"| {name}"


def test_a_description_has_shapes_configuration_and_a_line_to_measure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = doubling("batch", 3, "height", "width")
    write_model(tmp_path, "net", net)
    write_model(tmp_path, "bad", net, config="input { name: 'z' }")
    assert main(["--describe", f"--model-repository={tmp_path}"]) == 0
    bad, described = capsys.readouterr().out.strip().split("\n\n", 1)
    assert bad.startswith("bad: not loaded: Invalid argument: ")
    assert described.splitlines()[:3] == [
        "net: onnxruntime_onnx, batches of up to 4",
        "  takes x: FP32 [3, -1 (height), -1 (width)]",
        "  gives y: FP32 [3, -1 (height), -1 (width)]",
    ]
    assert "\n  max_batch_size: 4\n" in described
    assert described.splitlines()[-1] == "tpx perf -m net --shape x:3,H,W"


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("given", [True, False])
def test_a_torchscript_file_without_configuration_gets_one_to_fill_in(
    given: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path("cnn.pt") if given else Path("models/cnn/1/model.pt")
    file.parent.mkdir(parents=True, exist_ok=True)
    import torch  # takes a second, which only this test needs

    torch.jit.trace(torch.nn.Identity(), torch.zeros(1)).save(file)
    words = [str(file) if given else "models"]
    assert main([*words, *ANY_PORTS]) == 1
    assert "`tpx serve --describe` prints the lines to write" in capsys.readouterr().out
    assert main(["--describe", *words]) == 0
    out = capsys.readouterr().out
    assert out.startswith("cnn: not loaded: ")
    assert 'Write them to models/cnn/config.pbtxt:\n\n  backend: "pytorch"\n' in out
    assert ("Move the file to models/cnn/1/model.pt" in out) is given
    file.write_bytes(b"any")
    assert main(["--describe", *words]) == 0
    assert "config.pbtxt" not in capsys.readouterr().out


def test_what_few_servers_need_is_not_imported_before_it_is_needed() -> None:
    late = "psutil email configparser onnxruntime yaml jinja2 tpx.serving.processes tpx.serving.ensemble.run"
    program = f"import sys, tpx.cli.serve; print(*sys.modules.keys() & set('{late}'.split()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_what_a_server_imports_has_no_frozen_dataclasses() -> None:
    program = """
import dataclasses, sys, tpx.cli.serve
for module in [module for name, module in sys.modules.items() if name.startswith("tpx.")]:
    for value in vars(module).values():
        if dataclasses.is_dataclass(value) and value.__dataclass_params__.frozen:
            print(value.__module__ + "." + value.__qualname__)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
