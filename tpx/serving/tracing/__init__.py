"""Traces of single requests: `tracer` chooses them by its `settings`, `trace` collects one, `writer` writes
them to a file, `export` sends them to a collector as `spans`, below the span of their caller."""
