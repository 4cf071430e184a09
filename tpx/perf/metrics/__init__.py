"""What a server's metrics page says while it is measured."""
