"""Transport between two processes of a server: the engine and a frontend, or the server and a Python model.

Frames go over a socket (`frame_socket`), large tensors and messages through shared memory (`memory`).
Workers of Python models import it with their own Python, from 3.9 on, so it needs only numpy.
"""
