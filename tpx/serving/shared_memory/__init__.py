"""Shared memory that clients register: their tensors are read from it and written to it."""
