"""Model repositories in object stores."""
