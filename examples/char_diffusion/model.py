"""A small transformer that sees a text from both sides and tells the characters that are masked in it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """Every character looks at all others, then thinks for itself."""

    def __init__(self, n_embd: int, n_head: int, dropout: float) -> None:
        super().__init__()
        self.n_head, self.dropout = n_head, dropout
        self.before_looking, self.before_thinking = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.look = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.seen = nn.Linear(n_embd, n_embd, bias=False)
        self.think = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        n_rows, n_chars, n_embd = x.shape
        parts = self.look(self.before_looking(x)).view(n_rows, n_chars, 3, self.n_head, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        seen = functional.scaled_dot_product_attention(
            rotated(query, turn), rotated(key, turn), value, dropout_p=dropout
        )
        x = x + self.seen(seen.transpose(1, 2).reshape(n_rows, n_chars, n_embd))
        return x + self.think(self.before_thinking(x))


class Filler(nn.Module):
    """From tokens ``[rows, characters]`` to the logits of what stands at each place.

    Positions are rotations of queries and keys, so that what counts is how far two characters are apart. With learned
    positions the loss stays at the frequencies of the letters for ten seconds before it falls: 3.2 against 2.4.
    """

    def __init__(
        self, *, vocab_size: int, block_size: int, n_layer: int, n_head: int, n_embd: int, dropout: float
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, n_embd)
        self.blocks = nn.ModuleList(Block(n_embd, n_head, dropout) for _ in range(n_layer))
        self.tell = nn.Sequential(nn.LayerNorm(n_embd), nn.Linear(n_embd, vocab_size))
        nn.init.normal_(self.embed.weight, std=0.5)
        nn.init.normal_(self.tell[1].weight, std=0.02)  # at first all characters are about equally likely
        half = n_embd // n_head // 2
        angles = torch.arange(block_size)[:, None] * 100.0 ** (-torch.arange(half) / half)
        self.register_buffer("turn", torch.stack([angles.cos(), angles.sin()]), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        turn = self.turn[:, : tokens.shape[1]]
        for block in self.blocks:
            x = block(x, turn)
        return self.tell(x)


def rotated(x: Tensor, turn: Tensor) -> Tensor:
    """Pairs of numbers, turned by an angle that grows with the position."""
    cos, sin = turn
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


@torch.no_grad()
def fill(model: nn.Module, tokens: Tensor, mask_token_id: int) -> Tensor:
    """``tokens`` with each mask replaced: the most certain first, so that the others can build on it."""
    model.eval()
    tokens = tokens.clone()
    while (is_masked := tokens == mask_token_id).any():
        logits = model(tokens[None])[0]
        logits[:, mask_token_id] = -torch.inf
        certainty, guess = logits.softmax(dim=-1).max(dim=-1)
        best = certainty.where(is_masked, -1.0).argmax()
        tokens[best] = guess[best]
    return tokens
