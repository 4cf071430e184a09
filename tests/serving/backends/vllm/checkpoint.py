"""The tiny model as a checkpoint of Hugging Face's format, which vLLM reads."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from safetensors.numpy import save_file

import tpx.examples

_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def write_checkpoint(directory: Path) -> None:
    """Write configuration, weights and tokenizer of the tiny model."""
    directory.mkdir(parents=True)
    reader = GGUFReader(Path(tpx.examples.__file__).with_name("tiny.gguf"))
    given = {key: field.contents() for key, field in reader.fields.items()}
    sizes = {key.removeprefix("llama."): value for key, value in given.items() if key.startswith("llama.")}
    heads, pairs = sizes["attention.head_count"], sizes["attention.head_count_kv"]
    tensors = {}
    for tensor in reader.tensors:
        array = np.array(tensor.data).reshape([int(size) for size in reversed(tensor.shape)])
        kind = tensor.name.split(".")[2] if tensor.name.startswith("blk.") else ""
        if kind in ("attn_q", "attn_k"):
            array = _split_halves(array, heads if kind == "attn_q" else pairs)
        tensors[_name(tensor.name)] = array.astype(np.float32)
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    tokens, types = given["tokenizer.ggml.tokens"], given["tokenizer.ggml.token_type"]
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == 3]
    merges = [merge.split(" ", 1) for merge in given["tokenizer.ggml.merges"]]
    files: dict[str, Any] = {
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": sizes["embedding_length"],
            "intermediate_size": sizes["feed_forward_length"],
            "num_hidden_layers": sizes["block_count"],
            "num_attention_heads": heads,
            "num_key_value_heads": pairs,
            "head_dim": sizes["rope.dimension_count"],
            "max_position_embeddings": sizes["context_length"],
            "rms_norm_eps": sizes["attention.layer_norm_rms_epsilon"],
            "rope_theta": sizes["rope.freq_base"],
            "vocab_size": len(tokens),
            "tie_word_embeddings": True,
            "hidden_act": "silu",
            "torch_dtype": "float32",
            "bos_token_id": 0,
            "eos_token_id": 0,
        },
        "tokenizer.json": _tokenizer(tokens, merges, special),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": tokens[0],
            "chat_template": given["tokenizer.chat_template"],
        },
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content), encoding="utf-8")


def write_adapter(directory: Path, checkpoint: Path) -> None:
    """Write a LoRA of the tiny model that changes all its texts."""
    directory.mkdir()
    sizes = json.loads((checkpoint / "config.json").read_text())
    width, rank, names = sizes["hidden_size"], 8, ("q_proj", "o_proj")
    random = np.random.default_rng(1)
    tensors = {}
    for layer in range(sizes["num_hidden_layers"]):
        for name in names:
            module = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            for half, shape in (("A", (rank, width)), ("B", (width, rank))):
                values = random.standard_normal(shape, np.float32)
                tensors[f"{module}.lora_{half}.weight"] = values
    save_file(tensors, directory / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 16, "target_modules": list(names), "bias": "none"}
    (directory / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")


def _split_halves(array: Any, heads: int) -> Any:
    """Reorder rotated pairs of rows: neighbours in GGUF, a half of the head apart here."""
    rows, columns = array.shape
    return array.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _name(name: str) -> str:
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    _, number, kind, _ = name.split(".")
    return f"model.layers.{number}.{_NAMES[kind]}.weight"


def _tokenizer(tokens: list[str], merges: list[list[str]], special: list[str]) -> dict[str, Any]:
    bytes_of = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": tokens.index(token), "content": token, "special": True, **flags} for token in special
        ],
        "normalizer": None,
        "pre_tokenizer": bytes_of,
        "post_processor": None,
        "decoder": bytes_of,
        "model": {
            "type": "BPE",
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": merges,
        },
    }
