"""Carry out trials.

`loader` loads configurations into a server process, a child (`local`, `docker`) or one that already
runs (`servers`), applies load to them (`load`), and gets outputs to compare (`outputs`). `inprocess` runs
the engine in this process.
"""
