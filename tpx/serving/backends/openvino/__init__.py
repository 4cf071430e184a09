"""Models that run on OpenVINO, in its own format or another one that it reads.

Without `openvino_telemetry`, which it depends on, OpenVINO does not tell its makers that it was imported.
"""

import sys

sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
