"""Fields of subclasses, and `Generation.raw`, are passed through."""

import attrs
import pytest
from pydantic import BaseModel

from sampling import (
    Action,
    Cached,
    EscalationStrategy,
    Generation,
    MultiTurnStrategy,
    Price,
    Priced,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
    Requirement,
    Retrying,
    Tier,
    Usage,
)


class City(BaseModel):
    name: str


@attrs.frozen
class Routed(Action):
    """An action with a field of its own, in the way of attrs."""

    tenant: str = attrs.field(default="nobody", kw_only=True)


class ByHand(Action):
    """An action with a field of its own, in the way of Python."""

    def __init__(self, text, parser=None, *, tenant):
        super().__init__(text, parser)
        object.__setattr__(self, "tenant", tenant)


@attrs.frozen
class Traced(Generation):
    trace: str = attrs.field(default="", kw_only=True)


STRATEGIES = [
    RejectionSamplingStrategy(loop_budget=2),
    MultiTurnStrategy(loop_budget=2, state_requirements=True),
    RepairTemplateStrategy(loop_budget=2),
    EscalationStrategy([Tier(), Tier()]),
]
LAYERS = [lambda backend: backend, Retrying, Cached, lambda backend: Priced(backend, Price(1, 1))]


@pytest.mark.parametrize("kind", [Routed, ByHand])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda one: type(one).__name__)
def test_fields_of_an_action_reach_the_backend_in_every_attempt(run, strategy, kind):
    """Repairs change the text of an action, and keep the rest of it."""
    tenants = []

    async def backend(request):
        tenants.append((type(request.action), request.action.tenant))
        return "no"

    run(strategy.sample, kind("q", tenant="acme"), None, backend, [Requirement("says yes", lambda text: text == "yes")])
    assert [(kind, "acme")] * 2 == tenants


@pytest.mark.parametrize("wrap", LAYERS)
def test_fields_of_a_generation_and_raw_are_on_the_slice(run, wrap):
    """Through all layers, which may change its usage."""

    async def backend(request):
        return Traced("yes", Usage(1, 2), trace="t-1", raw={"id": "r-1"})

    result = run(RejectionSamplingStrategy().sample, "q", None, wrap(backend))
    generation = result.best.generation
    assert (Traced, "t-1", {"id": "r-1"}) == (type(generation), generation.trace, generation.raw)


@pytest.mark.parametrize("kind", [Routed, ByHand])
def test_a_subclass_reads_types_like_any_action(kind):
    """The parser is made of the type, and the arguments are checked."""
    action = kind("Name a city.", City, tenant="acme")
    assert City(name="Rome") == action.parse('{"name": "Rome"}')
    other = action.with_text("Name another.")
    assert ("Name another.", "acme", action.schema) == (other.text, other.tenant, other.schema)
    with pytest.raises(TypeError, match="text must be a str"):
        kind(5, tenant="acme")
    with pytest.raises(TypeError, match="parser must be a function"):
        kind("q", 5, tenant="acme")
