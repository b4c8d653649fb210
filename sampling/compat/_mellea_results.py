"""Translate our results into those of mellea."""

from collections.abc import Mapping
from typing import Any

from mellea.core import ComputedModelOutputThunk, GenerateLog, ValidationResult
from mellea.core import Requirement as MelleaRequirement
from mellea.core import SamplingResult as MelleaResult

from sampling.compat._mellea_backend import MelleaCall, Record
from sampling.requirements import Validation
from sampling.results import SamplingResult, Slice

__all__ = ["translate_result"]


def translate_result(result: SamplingResult[Any], call: MelleaCall) -> MelleaResult[Any]:
    """Convert a result to one of mellea's, with one entry per slice, by iteration."""
    records = [_record_of(one, call) for one in result.slices]
    best = next(place for place, one in enumerate(result.slices) if one is result.best)
    translated: MelleaResult[Any] = MelleaResult(
        best,
        result.success,
        sample_generations=[record.thunk for record in records],
        sample_validations=[_validations_of(*pair, call) for pair in zip(result.slices, records, strict=True)],
        sample_actions=[record.action for record in records],
        sample_contexts=[record.context for record in records],
    )
    # The session reads the log of the answer.
    records[best].thunk.generate_log.is_final_result = True
    return translated


def _record_of(one: Slice[Any], call: MelleaCall) -> Record:
    record = call.records.get(one.iteration_id)
    if record is None or record.thunk.value != one.text:
        # Of another backend, or of several requests: there is no object of mellea for this answer.
        record = call.record_of_text(one.text or "", one.action.text)
    record.thunk = ComputedModelOutputThunk(record.thunk)
    if record.thunk.generate_log is None:
        record.thunk._generate_log = GenerateLog()
    return record


def _validations_of(
    one: Slice[Any], record: Record, call: MelleaCall
) -> list[tuple[MelleaRequirement, ValidationResult]]:
    return [_validation_of(validation, record, call.requirements) for validation in one.validations]


def _validation_of(
    validation: Validation, record: Record, requirements: Mapping[int, MelleaRequirement]
) -> tuple[MelleaRequirement, ValidationResult]:
    key = id(validation.requirement)
    verdict = record.validations.get(key)
    if verdict is None:
        # A requirement of the strategy, an answer that was cut off, or a check that raised.
        verdict = ValidationResult(
            validation.passed, reason=validation.reason, score=validation.score, error=validation.error
        )
    description = None if validation.requirement is None else validation.requirement.description
    return requirements.get(key) or MelleaRequirement(description), verdict
