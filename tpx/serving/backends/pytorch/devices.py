"""Where an instance computes."""

import torch

from tpx.errors import LoadError
from tpx.serving.backends.contract import InstanceSpec


def device_of(spec: InstanceSpec, model: str) -> torch.device | None:
    """None for KIND_MODEL: the model stays where it puts itself. Raises LoadError that names what is
    missing."""
    if spec.kind == "KIND_MODEL":
        return None
    if spec.kind != "KIND_GPU":
        return torch.device("cpu")
    where = f"instance group of model '{model}' has kind KIND_GPU but"
    if torch.version.cuda is None and torch.version.hip is None:
        raise LoadError(
            f"{where} the installed PyTorch {torch.__version__} is built without CUDA: install a build with "
            f"it, "
            "or use KIND_CPU"
        )
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise LoadError(
            f"{where} no GPUs are available: PyTorch {torch.__version__} finds no device of CUDA "
            f"{torch.version.cuda} (no driver, or none that is new enough); use KIND_CPU"
        )
    if spec.device_id >= count:
        raise LoadError(
            f"{where} specifies invalid or unsupported gpu id {spec.device_id}: there are {count}, from 0 on"
        )
    return torch.device("cuda", spec.device_id)
