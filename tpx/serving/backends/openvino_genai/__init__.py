"""The openvino_genai backend: language models as GGUF files or OpenVINO IR, with continuous batching."""
