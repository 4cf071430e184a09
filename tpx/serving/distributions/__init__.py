"""Latency distributions: histograms, and quantiles over a sliding window."""
