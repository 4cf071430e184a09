"""`backend: "pytorch"`: TorchScript, `torch.export` and AOTInductor archives, and `nn.Module` classes
in Python files.
"""

from tpx.serving.backends.pytorch.backend import PytorchBackend

__all__ = ["PytorchBackend"]
