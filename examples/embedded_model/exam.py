"""Measure the accuracy of the model on held-out questions, at temperature 1."""

from collections import defaultdict

import torch
from network import TinyLlama
from vocabulary import END, render, text_of, tokens_of

from sampling.backends.llama.models.arithmetic import Question, held_out

__all__ = ["share_right"]

_LONGEST = 60


def share_right(model: TinyLlama, *, count: int, seed: int) -> float:
    """Return the share of right answers."""
    chance = torch.Generator().manual_seed(seed)
    by_length = defaultdict[int, list[Question]](list)
    for question in held_out(count, seed=1):
        by_length[len(question.text)].append(question)
    right = 0
    for questions in by_length.values():
        answers = _sample(model, [tokens_of(render([question.text])) for question in questions], chance)
        right += sum(question.is_right(answer) for question, answer in zip(questions, answers, strict=True))
    return right / count


@torch.no_grad()
def _sample(model: TinyLlama, prompts: list[list[int]], chance: torch.Generator) -> list[str]:
    """Answer prompts of equal length, which need no padding."""
    tokens = torch.tensor(prompts)
    start = tokens.shape[1]
    ended = torch.zeros(len(prompts), dtype=torch.bool)
    while not ended.all() and tokens.shape[1] < start + _LONGEST:
        chosen = torch.multinomial(model(tokens)[:, -1].softmax(-1), 1, generator=chance)
        tokens = torch.cat((tokens, chosen), dim=1)
        ended |= chosen[:, 0] == END
    return [text_of(row[start:]) for row in tokens.tolist()]
