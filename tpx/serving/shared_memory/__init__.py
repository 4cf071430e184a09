"""Shared memory registered by clients, from which tensors are read and to which they are written."""
