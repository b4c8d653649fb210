"""Answers that a model judges."""

from sampling._arguments import check_instance, check_number, check_str
from sampling._engine.judge import Judge, Scored, YesOrNo
from sampling.messages import Options
from sampling.protocols import BackendLike, generate_of
from sampling.requirements import Requirement

__all__ = ["judge"]


def judge(
    description: str,
    *,
    backend: BackendLike | None = None,
    at_least: float | None = None,
    out_of: float = 10,
    options: Options | None = None,
    timeout_s: float | None = None,
) -> Requirement:
    """
    Require what a model decides, such as "is polite".

    Args:
        description: What must be true of the answer.

        backend: Who judges; None for the backend of the call. Either way, what it costs counts against the budget
            and is on the slice.

        at_least: None for yes or no; else the judge gives a number from 0 to `out_of`, and this many points pass.
            The score of the validation is the share of the points. 0 lets everything pass, and only scores.

        out_of: The most points that there are.

        options: How the judge generates; None for the model of the call, and all else as its backend has it.

        timeout_s: How long it may take; None for as long as its backend may.

    It is asked after all code checks of the attempt passed. What it can't be understood to say is never a pass.
    """
    check_str("description", description, empty=False)
    if backend is not None:
        generate_of(backend)
    if options is not None:
        check_instance("options", options, Options, "Options or None")
    most = check_number("out_of", out_of, above=0)
    if at_least is None:
        asks = Judge(description, YesOrNo(), backend, options)
        return Requirement(description, asks, judged=True, timeout_s=timeout_s)
    if check_number("at_least", at_least, least=0) > most:
        raise ValueError(f"at_least must be <= out_of, got {at_least:g} and {most:g}")
    asks = Judge(description, Scored(at_least, most), backend, options)
    return Requirement(f"{description} ({at_least:g} of {most:g})", asks, judged=True, timeout_s=timeout_s)
