"""The job that a world runs, as somebody starts it: its regions, its sinks, and its graph."""

import random
from dataclasses import replace

from sluice.runtime.coordinator.policy.checkpoint_plan import JobPlan, RegionPlan
from sluice.runtime.model.checkpoint_record import OperatorNode
from tests.simulation.file_watch import TARGET
from tests.simulation.files import FILES
from tests.simulation.profile import Profile
from tests.simulation.shared import GRAPH, sharing


def plan_of(profile: Profile, dice: random.Random) -> JobPlan:
    """As somebody starts the job now; ``dice`` say how many regions, and of which engine."""
    count = 1 if profile.external else profile.regions
    if profile.rescale:
        least = 2 if profile.shared else 1  # one that writes the topic, and one that reads it
        count = dice.randint(least, profile.rescale)
    follows = profile.continuous and not (profile.engines and dice.random() < 0.5)
    names = ["r"] if profile.rescale and count == 1 else [f"r{n}" for n in range(count)]
    regions = tuple(
        RegionPlan(
            name=name,
            source_ids=() if profile.external else ("source",),
            sink_ids=_sink_ids_of(profile),
            chained=True,
            stateful=profile.stateful,
            keyed=profile.keyed,
            stateful_sink_ids=(FILES,) if profile.files else (),
            keeps_logs=profile.external,
            follows=follows,
        )
        for name in names
    )
    if profile.topic:
        regions = (*regions[:-1], replace(regions[-1], upstream=(regions[0].name,)))
    if profile.shared:
        regions = sharing(regions, moves=bool(profile.rescale or profile.move))
    return JobPlan(
        name="simulated",
        graph=_graph_of(profile),
        settings={f"{FILES}.path": TARGET} if profile.files else {},
        regions=regions,
    )


def _sink_ids_of(profile: Profile) -> tuple[str, ...]:
    kafka = () if profile.only_files else ("sink",)
    return (*kafka, FILES) if profile.files else kafka


def _graph_of(profile: Profile) -> tuple[OperatorNode, ...]:
    if profile.shared:
        return GRAPH
    if not profile.files:
        return ()
    source = OperatorNode(operator_id="source", name="source", kind="source", upstream=())
    return (
        source,
        *(
            OperatorNode(operator_id=name, name=name, kind="sink", upstream=("source",))
            for name in _sink_ids_of(profile)
        ),
    )
