"""Requirements that a model judges."""

from sampling._arguments import check_instance, check_number, check_str
from sampling._engine.judge import Judge, Scored, YesOrNo
from sampling.messages import Options
from sampling.protocols import BackendLike, generate_of
from sampling.requirements import Requirement

__all__ = ["grounded", "judge"]


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
    Require something that a model judges, such as "is polite".

    The judge runs after all code checks of the attempt passed. An unclear reply never passes.

    Args:
        description: A statement that must be true of the answer.

        backend: The backend of the judge. None uses the backend of the call.
            Either way, its usage counts against the budget and is on the slice.

        at_least: The points needed to pass, from 0 to `out_of`. None makes it a yes or no question.
            The score of the validation is the share of the points. 0 passes everything and only scores.

        out_of: The maximum number of points.

        options: The options of the judge. None uses the model of the call and the defaults of the backend.

        timeout_s: Maximum time. None leaves it to the backend.
    """
    check_str("description", description, empty=False)
    if backend is not None:
        generate_of(backend)
    if options is not None:
        check_instance("options", options, Options, "Options or None")
    most = check_number("out_of", out_of, above=0)
    if at_least is None:
        if backend is None and options is None:
            # The same as the sentence alone, so that both are judged once.
            return Requirement(description, timeout_s=timeout_s)
        judge_check = Judge(description, YesOrNo(), backend, options)
        return Requirement(description, judge_check, judged=True, timeout_s=timeout_s)
    if check_number("at_least", at_least, least=0) > most:
        raise ValueError(f"at_least must be <= out_of, got {at_least:g} and {most:g}")
    judge_check = Judge(description, Scored(at_least, most), backend, options)
    return Requirement(f"{description} ({at_least:g} of {most:g})", judge_check, judged=True, timeout_s=timeout_s)


def grounded(
    *, backend: BackendLike | None = None, options: Options | None = None, timeout_s: float | None = None
) -> Requirement:
    """
    Require that the conversation supports every claim of the answer, as judged by a model.

    Put the documents into the conversation, or pass them as `validation_ctx` of the call.
    The arguments are those of `judge`.
    """
    return judge(_GROUNDED, backend=backend, options=options, timeout_s=timeout_s)


_GROUNDED = (
    "every claim in the answer is supported by what the conversation says, "
    "with nothing added from elsewhere and nothing contradicted"
)
