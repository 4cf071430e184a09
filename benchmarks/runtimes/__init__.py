"""What runs in processes of its own: models for the peers, and the loop that serving is held against."""
