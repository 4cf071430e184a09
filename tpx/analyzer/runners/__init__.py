"""What carries out trials: a server started here, or a recorded table."""
