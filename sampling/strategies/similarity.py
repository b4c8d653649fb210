"""How alike two answers are by their embeddings, which have to be waited for."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from inspect import isawaitable
from typing import Any, TypeAlias, cast

import attrs

from sampling._arguments import check_bool, wrong_type
from sampling._similarity import cosine
from sampling.requirements import Requirement, Validation
from sampling.results import Slice

__all__ = ["Embed", "EmbeddingSimilarity"]

Embed: TypeAlias = Callable[[str], Sequence[float] | Awaitable[Sequence[float]]]
"""Turns a text into a vector: any function, sync or async."""


@attrs.frozen
class _Embedded(Validation):
    """The vector of an answer, kept on its slice, so that comparing two needs no waiting."""

    vector: tuple[float, ...] = attrs.field(default=(), kw_only=True, repr=False)


class EmbeddingSimilarity:
    """
    The cosine of the angle between the embeddings of two answers: `MBRStrategy(EmbeddingSimilarity(embed))`.

    `embed(text)` is any function that returns a vector, sync or async: a local model, or a server's /v1/embeddings.
    Each answer that passed all code checks is embedded once, as part of its validation, where waiting is allowed.
    An answer that can't be embedded is invalid, with the error on the result.
    """

    def __init__(self, embed: Embed, *, blocking: bool = False) -> None:
        """Take what embeds; `blocking` if it computes for long without awaiting, and belongs in a thread."""
        if not callable(embed):
            raise wrong_type("embed", embed, "a callable that takes a text and returns a vector")
        self._embed = embed
        self.requirement = Requirement(
            "has an embedding",
            check=self._embed_now if check_bool("blocking", blocking) else self._embed_async,
            blocking=blocking,
            judged=True,
        )
        """What a strategy checks besides its own requirements, to have the embeddings."""

    def __call__(self, one: Slice[Any], other: Slice[Any]) -> float:
        """Return how alike two slices are; 0 if one of them was not embedded."""
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
        raise wrong_type("what embed returns", vector, "a sequence of numbers")
    return _Embedded(True, vector=tuple([float(number) for number in vector]))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
