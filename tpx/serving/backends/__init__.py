"""Backends, which run models: one module or package each, imported when a model first needs it."""
