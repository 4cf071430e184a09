"""Code that runs in the process of a Python model; it needs only numpy and the standard library."""
