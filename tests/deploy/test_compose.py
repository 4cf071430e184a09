"""The commands of compose.yaml as processes, with the names and files that the containers would have."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.files import DEPLOY, LOOPBACK_UP, image_variables, load
from tests.e2e.child import environment
from tests.serving.onnx_files import write_model

SERVICES = load("compose.yaml")["services"]
SCRIPT = f"""
mount --bind hosts /etc/hosts
{LOOPBACK_UP}
python -m tpx $SERVE >tpx.log 2>&1 &
prometheus $PROMETHEUS >prometheus.log 2>&1 &
for _ in $(seq 120); do
  curl -s 'http://prometheus:9090/api/v1/query?query=nv_model_load_duration_secs' >answer.json || true
  grep -q net answer.json && exit 0
  sleep 0.5
done
cat tpx.log prometheus.log
exit 1
"""


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus (Debian: prometheus)")
@pytest.mark.timeout(90)
def test_prometheus_scrapes_tpx_by_the_names_of_the_services(tmp_path: Path) -> None:
    """As in its container, tpx has its own address: listening on 127.0.0.1 alone would not do."""
    write_model(tmp_path / "models", "net")
    hosts = "127.0.0.1 localhost prometheus\n127.0.0.2 tpx\n"
    (tmp_path / "hosts").write_text(hosts, encoding="utf-8")
    source, target, _ = SERVICES["prometheus"]["volumes"][0].split(":")
    assert target == "/etc/prometheus"  # where the image looks for prometheus.yml
    config = (DEPLOY / source).resolve() / "prometheus.yml"
    models = SERVICES["tpx"]["volumes"][0].rpartition("}:")[2].removesuffix(":ro")
    assert SERVICES["tpx"]["environment"]["TPX_SERVE_MODEL_REPOSITORY"] == models
    words = {
        **image_variables("Containerfile"),
        **SERVICES["tpx"]["environment"],
        "TPX_SERVE_MODEL_REPOSITORY": str(tmp_path / "models"),
        "SERVE": " ".join(SERVICES["tpx"]["command"]),
        "PROMETHEUS": f"--config.file={config} --storage.tsdb.path={tmp_path / 'data'}",
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
    }
    alone = ["unshare", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child"]
    done = subprocess.run(
        [*alone, "bash", "-e", "-c", SCRIPT],
        cwd=tmp_path,
        env=environment(words),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [series] = json.loads((tmp_path / "answer.json").read_text("utf-8"))["data"]["result"]
    assert series["metric"]["instance"] == "tpx:8002"


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    provisioning = "grafana/provisioning/"
    [source] = load(f"{provisioning}datasources/prometheus.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    [provider] = load(f"{provisioning}dashboards/tpx.yaml")["providers"]
    mounted = [volume.split(":")[1] for volume in SERVICES["grafana"]["volumes"]]
    assert f"{provider['options']['path']}/tpx.json" in mounted
