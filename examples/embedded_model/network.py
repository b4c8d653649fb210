"""A llama network, small enough to train on a CPU in minutes."""

import math

import attrs
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

__all__ = ["Shape", "TinyLlama"]


@attrs.frozen
class Shape:
    """The dimensions of the network."""

    vocabulary: int
    layers: int = 3
    width: int = 96
    heads: int = 3
    feed_forward: int = 256
    context: int = 1_024
    rope_base: float = 10_000.0
    norm_epsilon: float = 1e-5

    @property
    def head_width(self) -> int:
        """The width of one head."""
        return self.width // self.heads


class TinyLlama(nn.Module):
    """Pre-norm transformer with RMS norms, rotary positions and a gated feed-forward."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocabulary, shape.width)
        self.blk = nn.ModuleList(_Block(shape) for _ in range(shape.layers))
        self.output_norm = nn.RMSNorm(shape.width, eps=shape.norm_epsilon)
        self.output = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.turns = _rotations(shape)
        self.apply(self._start)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next token at every position."""
        turns = tuple(one[: tokens.shape[1]] for one in self.turns)
        hidden = self.token_embd(tokens)
        for block in self.blk:
            hidden = block(hidden, turns)
        return self.output(self.output_norm(hidden))

    def _start(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=1 / math.sqrt(self.shape.width))


class _Block(nn.Module):
    # The names are those of the tensors in a GGUF file.
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.attn_norm = nn.RMSNorm(shape.width, eps=shape.norm_epsilon)
        self.attn_q = nn.Linear(shape.width, shape.width, bias=False)
        self.attn_k = nn.Linear(shape.width, shape.width, bias=False)
        self.attn_v = nn.Linear(shape.width, shape.width, bias=False)
        self.attn_output = nn.Linear(shape.width, shape.width, bias=False)
        self.ffn_norm = nn.RMSNorm(shape.width, eps=shape.norm_epsilon)
        self.ffn_gate = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.ffn_up = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.ffn_down = nn.Linear(shape.feed_forward, shape.width, bias=False)

    def forward(self, hidden: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        hidden = hidden + self._attention(self.attn_norm(hidden), turns)
        normed = self.ffn_norm(hidden)
        return hidden + self.ffn_down(F.silu(self.ffn_gate(normed)) * self.ffn_up(normed))

    def _attention(self, normed: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        query, key, value = (self._heads(project(normed)) for project in (self.attn_q, self.attn_k, self.attn_v))
        mixed = F.scaled_dot_product_attention(_turn(query, turns), _turn(key, turns), value, is_causal=True)
        return self.attn_output(mixed.transpose(1, 2).flatten(2))

    def _heads(self, projected: Tensor) -> Tensor:
        return projected.unflatten(2, (self.shape.heads, self.shape.head_width)).transpose(1, 2)


def _rotations(shape: Shape) -> tuple[Tensor, Tensor]:
    exponents = torch.arange(0, shape.head_width, 2) / shape.head_width
    angles = torch.outer(torch.arange(shape.context), shape.rope_base**-exponents)
    return angles.cos(), angles.sin()


def _turn(heads: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate neighbours, (0, 1), (2, 3), …, as llama.cpp does for this architecture."""
    cos, sin = turns
    even, odd = heads[..., 0::2], heads[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
