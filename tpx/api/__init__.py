"""The Python API, thin over the server, the measuring session and the analyzer; `import tpx` has its names.

What `tpx.__all__` lists is public and stable; everything else of the package is not.
"""
