"""Code that runs in the process of a Python model: numpy and the standard library are all that it needs."""
