"""Seeds on a real model."""

import pytest

from sampling import LlamaBackend, Options, RejectionSamplingStrategy

pytestmark = pytest.mark.anyio


async def test_attempts_differ_and_runs_repeat():
    """S23: twelve attempts with one seed are twelve samples, and a second run draws the same ones."""
    strategy = RejectionSamplingStrategy(loop_budget=4, concurrency_budget=3, accept_incomplete=True)
    options = Options(seed=11, temperature=3.0, max_tokens=12, top_k=0, top_p=1.0, min_p=0.0)
    async with LlamaBackend(slots=1) as backend:
        runs = []
        for _ in range(2):
            result = await strategy.sample("What is 347 + 286?", None, backend, [lambda text: False], options=options)
            runs.append([one.text for one in result.slices])
    assert runs[0] == runs[1]
    assert 12 == len(runs[0])
    assert 9 < len(set(runs[0]))
