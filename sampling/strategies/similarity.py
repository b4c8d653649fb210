"""Similarity of answers by their embeddings."""

import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from inspect import isawaitable
from typing import Any, TypeAlias, cast

import attrs

from sampling._arguments import check_bool, wrong_type
from sampling._text.similarity import cosine
from sampling.errors import ScoreNotFinite
from sampling.requirements import Requirement, Validation
from sampling.results import Slice

__all__ = ["Embed", "EmbeddingSimilarity"]

Embed: TypeAlias = Callable[[str], Sequence[float] | Awaitable[Sequence[float]]]
"""A function that turns a text into a vector, sync or async."""


@attrs.frozen
class _Embedded(Validation):
    """
    A validation that carries the vector of an answer.

    `select` can't await, so the vector must be there before it runs.
    """

    vector: tuple[float, ...] = attrs.field(default=(), kw_only=True, repr=False)


class EmbeddingSimilarity:
    """
    Cosine similarity of embeddings, for `MBRStrategy(EmbeddingSimilarity(embed))`.

    `embed(text)` is any function that returns a vector, sync or async: a local model, or a server's /v1/embeddings.
    Each answer that passed all code checks is embedded once, as part of its validation.
    If embedding raises an error, the answer is invalid, and the error is on the result.
    """

    def __init__(self, embed: Embed, *, blocking: bool = False) -> None:
        """Set the embedding function. `blocking=True` runs it in a thread."""
        if not callable(embed):
            raise wrong_type("embed", embed, "a callable that takes a text and returns a vector")
        self._embed = embed
        self.requirement: Requirement = Requirement(
            "has an embedding",
            check=self._embed_now if check_bool("blocking", blocking) else self._embed_async,
            blocking=blocking,
            judged=True,
        )
        """The requirement that computes the embeddings. `MBRStrategy` adds it to its own."""

    def __call__(self, one: Slice[Any], other: Slice[Any]) -> float:
        """
        Return the similarity of two slices.

        It is 0 if one of them has no embedding.
        """
        vector, other_vector = self._vector_of(one), self._vector_of(other)
        return cosine(vector, other_vector) if vector and other_vector else 0.0

    async def _embed_async(self, text: str) -> Validation:
        vector = self._embed(text)
        return _embedded(await vector if isawaitable(vector) else vector)

    def _embed_now(self, text: str) -> Validation:
        return _embedded(cast("Sequence[float]", self._embed(text)))

    def _vector_of(self, one: Slice[Any]) -> tuple[float, ...]:
        for validation in one.validations:
            if validation.requirement is self.requirement and isinstance(validation, _Embedded):
                return validation.vector
        return ()


def _embedded(vector: object) -> Validation:
    if isinstance(vector, str | bytes) or not isinstance(vector, Iterable):
        raise wrong_type("the result of embed", vector, "a sequence of numbers")
    # Plain floats, because an array of another library may not compare or pickle like a tuple.
    numbers = tuple([float(number) for number in vector])  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if not all(map(math.isfinite, numbers)):
        raise ScoreNotFinite("the embedding of an answer must be finite numbers")
    return _Embedded(True, vector=numbers)
