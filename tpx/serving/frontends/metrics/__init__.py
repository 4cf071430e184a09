"""The metrics endpoint: Triton's names in Prometheus' text format."""
