"""The metrics endpoint: Triton's metric names in Prometheus text format."""
