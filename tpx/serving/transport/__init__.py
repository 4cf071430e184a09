"""Messages between two processes through shared memory: for frontends, and for processes of models.

Each direction has a `ring` of frames, and a `heap` of blocks for what is too large for the ring. The end
that sends allocates blocks and frees them; the end that reads only reports those that it no longer views.
`channel` is one end. It neither blocks nor waits, so that an event loop or threads can own it.

The modules run in the Python of a model's environment, 3.9 or later, and need nothing but numpy.
"""
