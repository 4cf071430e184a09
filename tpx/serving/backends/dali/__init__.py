"""DALI pipelines that decode, resize and normalize, served as models.

`definition.py` reads a serialized pipeline, or serializes one; `backend.py` opens it as a model and
runs it.
"""
