"""What the server uses while it is measured: memory of its processes, and its GPUs where there are any."""
