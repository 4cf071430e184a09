"""The python backend: `model.py` files, each instance in a process of its own."""
