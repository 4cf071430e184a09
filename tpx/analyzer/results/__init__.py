"""What a run is asked for, what it found, and the journal that keeps it."""
