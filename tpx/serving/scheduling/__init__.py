"""Schedulers, which decide when requests form a batch: pure policies with an injected clock."""
