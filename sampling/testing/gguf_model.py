"""
Write a tiny language model for tests with a real inference server.

It is a llama model with random weights, and its vocabulary is the 256 bytes. The file has half a megabyte, loads in
milliseconds and generates thousands of tokens per second. The text is meaningless, but it is text: one dimension of the
network restricts the output to printable ASCII and excludes the end token. So an answer has `max_tokens` tokens, unless
a stop word or a grammar ends it.
"""

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from sampling._arguments import check_int
from sampling.errors import MissingExtra

try:
    import gguf
    import numpy as np
except ImportError as _error:
    raise MissingExtra("write_tiny_gguf()", "gguf", "gguf") from _error

__all__ = ["write_tiny_gguf"]

_LAYERS = 2
_WIDTH = 64
_HEADS = 4
_FEED_FORWARD = 192

_CHAT_TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"

_SPECIAL_TOKENS = [b"<unk>", b"<s>", b"</s>"]
_UNKNOWN, _BEGIN, _END = range(3)
_BYTE_TOKENS = [f"<0x{byte:02X}>".encode() for byte in range(256)]
_SPACE_TOKEN = "▁".encode()  # a space in SentencePiece. Without its own token it would take three
_TOKENS = [*_SPECIAL_TOKENS, *_BYTE_TOKENS, _SPACE_TOKEN]
_PRINTABLE = {len(_SPECIAL_TOKENS) + byte for byte in range(0x20, 0x7F)}

_Weights: TypeAlias = "np.ndarray[Any, np.dtype[np.float32]]"


def write_tiny_gguf(path: Path | str, *, seed: int = 0, context_tokens: int = 131_072) -> Path:
    """
    Write a llama model with random weights to `path`, and return the path.

    Args:
        path: The file to write. An existing file is overwritten.

        seed: The seed of the weights. The same seed writes the same bytes.

        context_tokens: The context length in the metadata of the model. A server allows no longer conversations.
    """
    check_int("seed", seed)
    check_int("context_tokens", context_tokens, least=1)
    writer = gguf.GGUFWriter(str(path), "llama")
    try:
        _describe_shape(writer, context_tokens)
        _describe_vocabulary(writer)
        for name, weights in _tensors(random.Random(seed)):  # noqa: S311 - weights, not secrets
            writer.add_tensor(name, weights)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()
    return Path(path)


def _describe_shape(writer: gguf.GGUFWriter, context_tokens: int) -> None:
    writer.add_name("tiny-random")
    writer.add_context_length(context_tokens)
    writer.add_block_count(_LAYERS)
    writer.add_embedding_length(_WIDTH)
    writer.add_feed_forward_length(_FEED_FORWARD)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_rope_dimension_count(_WIDTH // _HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)


def _describe_vocabulary(writer: gguf.GGUFWriter) -> None:
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    kinds += [gguf.TokenType.BYTE] * len(_BYTE_TOKENS)
    kinds += [gguf.TokenType.NORMAL]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(_TOKENS)
    writer.add_token_scores([0.0] * len(_TOKENS))
    writer.add_token_types(kinds)
    writer.add_unk_token_id(_UNKNOWN)
    writer.add_bos_token_id(_BEGIN)
    writer.add_eos_token_id(_END)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(_CHAT_TEMPLATE)


def _tensors(rng: random.Random) -> Iterator[tuple[str, _Weights]]:
    # Dimension 0 carries a constant through the whole network: every embedding sets it to 1, and no layer writes to it.
    # The output weights turn it into a large negative logit for every token that is not printable.
    embedding = _random_matrix(rng, len(_TOKENS), _WIDTH)
    embedding[:, 0] = 1.0
    output = _random_matrix(rng, len(_TOKENS), _WIDTH) * np.float32(2.0)
    output[:, 0] = [0.0 if token in _PRINTABLE else -1e3 for token in range(len(_TOKENS))]
    yield "token_embd.weight", embedding
    for layer in range(_LAYERS):
        for name, weights in _layer(rng):
            yield f"blk.{layer}.{name}.weight", weights
    yield "output_norm.weight", np.ones(_WIDTH, dtype=np.float32)
    yield "output.weight", output


def _layer(rng: random.Random) -> Iterator[tuple[str, _Weights]]:
    for name in ("attn_norm", "ffn_norm"):
        yield name, np.ones(_WIDTH, dtype=np.float32)
    for name in ("attn_q", "attn_k", "attn_v"):
        yield name, _random_matrix(rng, _WIDTH, _WIDTH)
    for name in ("ffn_gate", "ffn_up"):
        yield name, _random_matrix(rng, _FEED_FORWARD, _WIDTH)
    for name, columns in (("attn_output", _WIDTH), ("ffn_down", _FEED_FORWARD)):
        residual = _random_matrix(rng, _WIDTH, columns)
        residual[0, :] = 0.0  # keep dimension 0 constant
        yield name, residual


def _random_matrix(rng: random.Random, rows: int, columns: int) -> _Weights:
    """Draw a matrix of variance 1 / columns."""
    # `random` gives the same numbers in every version, which numpy does not promise.
    limit = math.sqrt(3 / columns)
    numbers = [rng.uniform(-limit, limit) for _ in range(rows * columns)]
    return np.array(numbers, dtype=np.float32).reshape(rows, columns)
