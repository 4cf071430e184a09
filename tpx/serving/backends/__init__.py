"""What can run a model: one module a backend, imported when a model first needs it."""
