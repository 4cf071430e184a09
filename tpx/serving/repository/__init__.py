"""Model repositories: what lies in them, how it is configured, and what of it is loaded."""
