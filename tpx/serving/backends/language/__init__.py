"""Parts that all engines of language models share: queue, answers, metrics, and the model's configuration.

The process of an engine is that of a Python model, so that transport, cancellation, restarts and metrics are
those of the python backend. `generation.py` runs in it, with the `TextEngine` of a backend; `model.py` in
the server.
"""
