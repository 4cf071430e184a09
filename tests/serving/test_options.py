"""The options of the server: safe defaults, and tritonserver's spellings."""

from pathlib import Path
from typing import Any

import pytest

from tpx.argv import from_argv
from tpx.options import build, fields_of, from_mapping
from tpx.serving.options import ServeConfig


def test_nobody_outside_this_machine_is_served_unless_asked() -> None:
    config = ServeConfig()
    assert {config.http.http_address, config.grpc.grpc_address, config.metrics_host} == {"127.0.0.1"}


def test_metrics_listen_where_http_would_if_it_were_served() -> None:
    config = build(ServeConfig, {"allow_http": False, "http_address": "0.0.0.0"})
    assert config.metrics_host == "127.0.0.1"


def test_defaults_are_tritons() -> None:
    config = ServeConfig()
    assert (config.http.http_port, config.grpc.grpc_port, config.metrics.metrics_port) == (8000, 8001, 8002)
    assert (config.server.id, config.server.exit_timeout_secs, config.http.http_max_input_size) == (
        "triton",
        30,
        67108864,
    )
    assert (config.repository.exit_on_error, config.repository.strict_readiness) == (True, True)
    assert (
        config.metrics.allow_gpu_metrics,
        config.metrics.allow_cpu_metrics,
        config.metrics.metrics_interval_ms,
    ) == (
        True,
        True,
        2000,
    )
    assert (config.grpc.grpc_keepalive_time, config.grpc.grpc_keepalive_timeout) == (7_200_000, 20_000)
    assert (config.grpc.grpc_http2_max_ping_strikes, config.grpc.grpc_infer_response_compression_level) == (
        2,
        "none",
    )


TRITON = [
    ("--model-repository=/m", "model_repository", (Path("/m"),)),
    ("--model-store=/m", "model_repository", (Path("/m"),)),
    ("--exit-on-error=false", "exit_on_error", False),
    ("--strict-readiness=0", "strict_readiness", False),
    ("--disable-auto-complete-config", "disable_auto_complete_config", True),
    ("--id=mine", "id", "mine"),
    ("--exit-timeout-secs=5", "exit_timeout_secs", 5),
    ("--model-load-thread-count=8", "model_load_thread_count", 8),
    ("--allow-http=false", "allow_http", False),
    ("--http-address=0.0.0.0", "http_address", "0.0.0.0"),
    ("--http-port=9000", "http_port", 9000),
    ("--reuse-http-port=true", "reuse_http_port", True),
    ("--http-max-input-size=1000", "http_max_input_size", 1000),
    ("--allow-grpc=off", "allow_grpc", False),
    ("--grpc-port=9001", "grpc_port", 9001),
    ("--reuse-grpc-port=1", "reuse_grpc_port", True),
    ("--grpc-use-ssl=true", "grpc_use_ssl", True),
    ("--grpc-use-ssl-mutual=true", "grpc_use_ssl_mutual", True),
    ("--grpc-server-cert=/c", "grpc_server_cert", Path("/c")),
    ("--grpc-server-key=/k", "grpc_server_key", Path("/k")),
    ("--grpc-root-cert=/r", "grpc_root_cert", Path("/r")),
    ("--grpc-infer-response-compression-level=high", "grpc_infer_response_compression_level", "high"),
    ("--grpc-keepalive-time=1000", "grpc_keepalive_time", 1000),
    ("--grpc-keepalive-timeout=1000", "grpc_keepalive_timeout", 1000),
    ("--grpc-keepalive-permit-without-calls=true", "grpc_keepalive_permit_without_calls", True),
    ("--grpc-http2-max-ping-strikes=3", "grpc_http2_max_ping_strikes", 3),
    ("--grpc-max-connection-age=7", "grpc_max_connection_age", 7),
    ("--allow-metrics=false", "allow_metrics", False),
    ("--metrics-port=9002", "metrics_port", 9002),
    ("--metrics-address=0.0.0.0", "metrics_host", "0.0.0.0"),
    ("--http-address=::1", "metrics_host", "::1"),
    ("--metrics-interval-ms=500", "metrics_interval_ms", 500),
    ("--metrics-config=summary_quantiles=0.5:0.05,0.9:0.01", "metrics_config",
     ("summary_quantiles=0.5:0.05,0.9:0.01",)),
    ("--allow-gpu-metrics=false", "allow_gpu_metrics", False),
    ("--allow-cpu-metrics=0", "allow_cpu_metrics", False),
    ("--backend-config=onnxruntime,default-max-batch-size=8", "backend_config",
     ("onnxruntime,default-max-batch-size=8",)),
    ("--log-verbose=1", "log_verbose", 1),
]  # fmt: skip


@pytest.mark.parametrize(("flag", "field", "value"), TRITON, ids=[flag for flag, _, _ in TRITON])
def test_flags_of_tritonserver_mean_the_same(flag: str, field: str, value: Any) -> None:
    config = from_argv(ServeConfig, [flag])
    values = {known.name: known.of(config) for known in fields_of(ServeConfig)}
    assert (values | {"metrics_host": config.metrics_host})[field] == value


SECTIONS = {
    "Models",
    "Server",
    "HTTP",
    "OpenAI's API",
    "gRPC",
    "Metrics",
    "Logging",
    "Tracing",
    "SageMaker and Vertex AI",
    "Accepted for compatibility",
    "Not supported yet",
}


def test_every_option_says_what_it_does_and_where_it_belongs() -> None:
    for field in fields_of(ServeConfig):
        assert field.option.help
        assert field.section in SECTIONS


def test_spellings_are_unique() -> None:
    spellings = [spelling for field in fields_of(ServeConfig) for spelling in field.spellings]
    assert len(spellings) == len(set(spellings))


def test_a_mapping_says_the_same_as_a_command_line() -> None:
    values = {"http_port": 9000, "model_repository": ["/a", "/b"], "exit-on-error": False}
    words = ["--http-port=9000", "--model-repository=/a", "--model-store=/b", "--no-exit-on-error"]
    assert from_mapping(ServeConfig, values) == from_argv(ServeConfig, words)
