"""The tiny model is small and reproducible. `tests/backends` loads it with llama.cpp."""

import pytest

from sampling.testing.gguf_model import write_tiny_gguf


def test_it_is_small_and_a_function_of_its_seed(tmp_path):
    """The same seed writes the same half megabyte, and another seed another one."""
    first, same, other = (
        write_tiny_gguf(tmp_path / f"{number}.gguf", seed=seed).read_bytes() for number, seed in enumerate([0, 0, 1])
    )
    assert first == same
    assert first != other
    assert 400_000 < len(first) < 700_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"seed": "0"}, "seed must be an int, got '0'"), ({"context_tokens": 0}, "context_tokens must be >= 1, got 0")],
)
def test_wrong_arguments_are_named(tmp_path, arguments, message):
    """An argument that can't be used is an error with its name and value."""
    with pytest.raises((TypeError, ValueError), match=message):
        write_tiny_gguf(tmp_path / "model.gguf", **arguments)
