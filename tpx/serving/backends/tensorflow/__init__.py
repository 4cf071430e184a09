"""TensorFlow models: SavedModels and frozen graphs."""
