"""TorchScript, `torch.export` and AOTInductor archives, and `nn.Module` classes in Python files."""
