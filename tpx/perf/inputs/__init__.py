"""What the requests carry."""
