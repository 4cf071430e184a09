"""How long things took, as distributions: histograms, and quantiles over a sliding window."""
