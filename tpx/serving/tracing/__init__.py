"""Request traces: `tracer` selects requests by its `settings`, `trace` collects one trace. Traces go
through a `queue`: `writer` writes files, and `spans` sends spans to a collector, below the caller's span.
"""
