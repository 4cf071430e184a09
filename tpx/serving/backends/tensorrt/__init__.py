"""Engines of TensorRT, on NVIDIA's GPUs."""
