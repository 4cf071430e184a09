"""The Helm chart, by Helm itself and by the schemas of Kubernetes."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.deploy.files import DEPLOY, documents
from tpx.options import build
from tpx.serving.options import ServeWords
from tpx.sources import collect, doubtful_variables, values_of

helm = pytest.importorskip("helm_python", reason="no Helm here: pip install 'tpx[deploy]'")
kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="pip install 'tpx[deploy]'")

CHART = DEPLOY / "helm" / "tpx"
VERSIONS = ("1.28", "1.33", kubernetes_validate.latest_version())
OTHERS = {"ScaledObject", "ServiceMonitor"}
"""Kinds that Kubernetes does not define itself."""
VOLUME: dict[str, Any] = {"repository": {"volume": {"persistentVolumeClaim": {"claimName": "models"}}}}
STORE: dict[str, Any] = {"repository": {"url": "s3://bucket/models", "credentialsSecret": "store"}}
SETTINGS: dict[str, dict[str, Any]] = {
    "a volume": VOLUME,
    "an object store": STORE,
    "stateful, on GPUs, with TLS": {**VOLUME, "kind": "StatefulSet", "gpus": 2, "tls": {"secretName": "tls"}},
    "scaled by Kubernetes": {**VOLUME, "autoscaling": {"kind": "hpa", "queueMilliseconds": 20}},
    "scaled by KEDA": {**VOLUME, "autoscaling": {"kind": "keda", "queueMilliseconds": 20}},
    "closed and watched": {
        **STORE,
        "replicas": 3,
        "networkPolicy": {"enabled": True, "egress": [{"to": [{"podSelector": {}}]}]},
        "serviceMonitor": {"enabled": True, "labels": {"release": "monitoring"}},
        "podAnnotations": {"team": "vision"},
        "nodeSelector": {"pool": "inference"},
        "tolerations": [{"key": "inference", "operator": "Exists"}],
        "env": [{"name": "OMP_NUM_THREADS", "value": "4"}],
        "extraArgs": ["--model-control-mode=poll"],
    },
}


def rendered(values: Mapping[str, Any]) -> dict[str, Any]:
    """The manifests of a release, by kind and name."""
    with helm.Chart.load(CHART) as chart:
        texts = chart.render(dict(values), name="prod", namespace="models")
    found = [each for name, text in texts.items() if name.endswith(".yaml") for each in documents(text)]
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in found}


def pod(manifests: Mapping[str, Any]) -> Any:
    [workload] = (each for each in manifests.values() if each["kind"] in ("Deployment", "StatefulSet"))
    return workload["spec"]["template"]["spec"]


def variables_of(container: Mapping[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container["env"]}


@pytest.mark.parametrize("values", SETTINGS.values(), ids=SETTINGS)
def test_helm_has_nothing_to_complain_of(values: dict[str, Any]) -> None:
    found = helm.lint(CHART, values, strict=True)
    said = [message["error"] for message in found["messages"] if message["error"] != "icon is recommended"]
    assert (said, found["errors"]) == ([], [])


@pytest.mark.parametrize("values", SETTINGS.values(), ids=SETTINGS)
def test_manifests_are_what_kubernetes_takes(values: dict[str, Any]) -> None:
    manifests = rendered(values)
    for manifest in manifests.values():
        if manifest["kind"] not in OTHERS:
            for version in VERSIONS:
                kubernetes_validate.validate(manifest, version, strict=True)
    assert "Service/prod-tpx" in manifests


@pytest.mark.parametrize("values", SETTINGS.values(), ids=SETTINGS)
def test_the_server_takes_its_options(values: dict[str, Any]) -> None:
    [container] = pod(rendered(values))["containers"]
    command, *options = container["args"]
    assert command == "serve"
    variables = variables_of(container)
    assert list(doubtful_variables("serve", variables, ServeWords)) == []
    config = build(ServeWords, values_of(collect(ServeWords, options, "serve", variables))).server
    assert config.repository.model_repository
    assert config.http.http_use_ssl == config.grpc.grpc_use_ssl == ("tls" in values)
    assert config.metrics.metrics_config == ("histogram_latencies=true",)


@pytest.mark.parametrize("values", SETTINGS.values(), ids=SETTINGS)
def test_a_pod_has_no_rights(values: dict[str, Any]) -> None:
    spec = pod(rendered(values))
    [container] = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }


def test_options_are_variables_that_replace_those_of_the_chart() -> None:
    options = {
        "model-control-mode": "poll",
        "max_inflated_bytes": 2_000_000_000,
        "allow-metrics": False,
        "backend_config": ["onnxruntime,a=1", "b=2"],
        "http-address": "127.0.0.1",
    }
    spec = pod(rendered({**VOLUME, "options": options}))
    variables = variables_of(spec["containers"][0])
    assert variables["TPX_SERVE_MAX_INFLATED_BYTES"] == "2000000000"
    assert variables["TPX_SERVE_HTTP_ADDRESS"] == "127.0.0.1"
    config = build(ServeWords, values_of(collect(ServeWords, [], "serve", variables))).server
    assert (config.repository.model_control_mode, config.metrics.allow_metrics) == ("poll", False)
    assert config.repository.backend_config == ("onnxruntime,a=1", "b=2")
    assert spec["enableServiceLinks"] is False


def test_a_pod_has_time_to_drain() -> None:
    spec = pod(rendered({**VOLUME, "drainSeconds": 40, "exitSeconds": 50, "preStopSeconds": 7}))
    [container] = spec["containers"]
    variables = variables_of(container)
    assert (variables["TPX_SERVE_DRAIN_SECS"], variables["TPX_SERVE_EXIT_TIMEOUT_SECS"]) == ("40", "50")
    assert container["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "7"]
    assert spec["terminationGracePeriodSeconds"] > 40 + 50 + 7


def test_gpus_are_added_to_the_limits() -> None:
    [container] = pod(rendered(SETTINGS["stateful, on GPUs, with TLS"]))["containers"]
    assert container["resources"]["limits"] == {"memory": "4Gi", "nvidia.com/gpu": 2}
    assert container["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"


def test_an_autoscaler_decides_how_many_replicas_there_are() -> None:
    for kind, name in (("hpa", "HorizontalPodAutoscaler"), ("keda", "ScaledObject")):
        manifests = rendered({**VOLUME, "autoscaling": {"kind": kind, "queueMilliseconds": 20}})
        assert "replicas" not in manifests["Deployment/prod-tpx"]["spec"]
        scaled = manifests[f"{name}/prod-tpx"]["spec"]
        assert scaled["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "prod-tpx"}
        assert "PodDisruptionBudget/prod-tpx" in manifests
    assert "PodDisruptionBudget/prod-tpx" not in rendered(VOLUME)


def test_only_clients_and_monitoring_reach_a_closed_server() -> None:
    policy = rendered(SETTINGS["closed and watched"])["NetworkPolicy/prod-tpx"]["spec"]
    assert [[port["port"] for port in rule["ports"]] for rule in policy["ingress"]] == [
        ["http", "grpc"],
        ["metrics"],
    ]
    assert [[port["port"] for port in rule["ports"]] for rule in policy["egress"][:2]] == [[53, 53], [443]]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "set url"),
        ({"repository": {"url": "s3://a", "volume": {"emptyDir": {}}}}, "not both"),
        ({"repository": {"url": "ftp://a"}}, "pattern"),
        ({**VOLUME, "replica": 2}, "replica"),
        ({**VOLUME, "kind": "DaemonSet"}, "kind"),
        ({**VOLUME, "autoscaling": {"kind": "hpa", "cpuPercent": 0}}, "set cpuPercent or queueMilliseconds"),
    ],
    ids=str,
)
def test_values_that_mean_nothing_are_refused(values: dict[str, Any], says: str) -> None:
    with pytest.raises(helm.HelmError, match=says):
        rendered(values)
