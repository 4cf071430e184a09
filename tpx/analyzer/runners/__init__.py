"""Carry out trials.

`loader` loads configurations into a server process, a child (`local`, `docker`) or one that already
runs (`servers`), and applies load to them (`load`). `inprocess` runs the engine in this process.
"""
