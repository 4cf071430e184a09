"""HTTP/1.1, both ends of it."""
