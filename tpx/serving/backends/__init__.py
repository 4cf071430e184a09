"""Backends, which run models: one module per backend, imported when a model first needs it."""
