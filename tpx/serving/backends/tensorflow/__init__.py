"""Models of TensorFlow: SavedModels and frozen graphs."""
