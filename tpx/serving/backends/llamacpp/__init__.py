"""The llamacpp backend: language models in GGUF files, on llama.cpp's server as a library."""
