"""The llamacpp backend: language models in GGUF files, each instance an engine in a process of its own.

The process is that of a Python model: `engine.py` is its `model.py`, so that transport, cancellation,
restarts and metrics are those of the python backend. `adapting.py` translates requests to llama.cpp's,
`views.py` its answers to those of OpenAI's API or to tensors named as in Triton's vLLM backend.
"""
