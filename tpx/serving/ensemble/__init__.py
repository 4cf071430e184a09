"""Ensembles: models made of models, whose tensors pass from one to the next without leaving the server."""
