"""Ensembles: models composed of models, whose tensors pass between steps inside the server."""
