"""Stacking: the requests of a batch become the model's input arrays, and its outputs become responses."""
