"""The vllm backend: language models on vLLM, configured as by Triton's backend of this name."""
