"""The answers to a whole story, for the tests of verdicts."""

from __future__ import annotations

from tests.unit.build import Story
from tracer.derived import Derived
from tracer.pipeline import Pipeline
from tracer.records import Warm


def told(story: Story, *learnt: Warm) -> dict[int, Derived]:
    """The last answer to each request of a story, by id; `learnt`: the history before it."""
    pipeline = Pipeline()
    found = [d for record in [*learnt, *story.records()] for d in pipeline.feed(record)]
    return {d.evidence.id: d for d in found}
