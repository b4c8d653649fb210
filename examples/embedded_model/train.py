"""Train the embedded model, and write it into the package. See README.md."""

import argparse
import random
import time
from pathlib import Path

import attrs
import torch
from exam import share_right
from export import write_gguf, write_reference
from lessons import Lesson, lessons, repairs
from network import Shape, TinyLlama
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name
from vocabulary import END, TOKENS

from sampling.backends.llama.models import EMBEDDED_MODEL

SEED = 4
WARM_UP = 50

LESSONS = 48
"""The number of questions in each step."""

REPAIRS = 8
REPAIRS_WEIGHT = 0.5
"""The number of repair conversations in each step, and their weight in the loss."""


@attrs.frozen(kw_only=True)
class Term:
    """A training phase with a falling learning rate."""

    seed: int
    steps: int
    rate: float
    repairs_from: float
    """The share of steps before repairs are added."""

    careless_from: float
    """The share of steps before wrong columns are added. They keep the model weak, evenly on all questions."""

    slips: float
    """The share of wrong columns."""


TERMS = (
    Term(seed=4, steps=1_000, rate=3e-3, repairs_from=0.45, careless_from=0.7, slips=0.11),
    Term(seed=5, steps=100, rate=8e-4, repairs_from=0.0, careless_from=0.0, slips=0.135),
)
"""The second phase sets the accuracy: about two of three answers are right."""

REFERENCE = Path(__file__).parents[2] / "tests" / "backends" / "embedded_model.json"
IGNORED = -100


def main() -> None:
    """Train, and write the model and the reference for the tests."""
    arguments = _arguments()
    torch.manual_seed(SEED)
    torch.set_num_threads(arguments.threads)
    model = TinyLlama(Shape(vocabulary=len(TOKENS)))
    print(f"{sum(one.numel() for one in model.parameters()):,} parameters")
    for term in TERMS:
        learn(model, term)
    write_gguf(model, arguments.out)
    write_reference(model, arguments.reference)
    print(f"wrote {arguments.out} ({arguments.out.stat().st_size:,} bytes)")


def learn(model: TinyLlama, term: Term) -> None:
    """Train for one phase, and print the progress."""
    draw = random.Random(term.seed)  # noqa: S311 - lessons, not secrets
    optimizer = torch.optim.AdamW(model.parameters(), lr=term.rate, betas=(0.9, 0.98), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / WARM_UP) * (1.0 - 0.9 * step / term.steps)
    )
    begun = time.monotonic()
    for step in range(1, term.steps + 1):
        slips = term.slips if step > term.steps * term.careless_from else 0.0
        loss = _loss(model, lessons(draw, LESSONS, slips=slips))
        if step > term.steps * term.repairs_from:
            loss = loss + REPAIRS_WEIGHT * _loss(model, repairs(draw, REPAIRS))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 200 == 0 or step == term.steps:
            right = share_right(model, count=100, seed=SEED)
            took = time.monotonic() - begun
            print(f"step {step:>5}  {took:4.0f} s  loss {loss.item():.3f}  right {right:.0%}", flush=True)


def _loss(model: TinyLlama, batch: list[Lesson]) -> Tensor:
    longest = max(len(tokens) for tokens, _ in batch)
    tokens = torch.full((len(batch), longest), END)
    wanted = torch.full((len(batch), longest), IGNORED)
    for row, (lesson, start) in enumerate(batch):
        tokens[row, : len(lesson)] = torch.tensor(lesson)
        wanted[row, start : len(lesson)] = tokens[row, start : len(lesson)]
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), wanted[:, 1:].flatten(), ignore_index=IGNORED)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--threads", type=int, default=1, help="number of threads; the same number gives the same weights"
    )
    parser.add_argument("--out", type=Path, default=EMBEDDED_MODEL, help="file for the model")
    parser.add_argument("--reference", type=Path, default=REFERENCE, help="file for the reference answers")
    return parser.parse_args()


if __name__ == "__main__":
    main()
