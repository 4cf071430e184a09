"""Watch a server through a measurement: the seam and the watch in `base`, probes in `machine` and `gpu`."""
