"""DALI: pipelines that decode, resize and normalise, served as models.

`definition.py` reads a serialized pipeline, or has one serialized; `backend.py` makes a model of it;
`execution.py` runs it.
"""
