"""Carry out trials.

`loader` brings configurations onto a server process, a child (`local`, `docker`) or one that runs already
(`control`), and puts load (`load`) on them. `inprocess` has the engine in this process.
"""
