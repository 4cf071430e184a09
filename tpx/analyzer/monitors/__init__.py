"""Monitor a server during a measurement: `base` holds the interface and the watch, `machine` and `gpu`
the probes.
"""
