"""What a transform needs beside PySpark is looked for before a job begins."""

import pytest

from sluice.runtime.errors import MissingRequirementError
from sluice.runtime.spark.frames.plan_analysis import PlanAnalysis, require_modules


@pytest.mark.parametrize("module", ["no_such_package.inside", "json.no_such_module"])
def test_a_module_that_is_not_installed_is_named_before_anything_runs(module: str) -> None:
    """Spark says of the same that a worker has crashed, in each attempt of the region again."""
    look = PlanAnalysis(stateful_kinds=("Aggregate",), modules=("json", module))
    with pytest.raises(MissingRequirementError, match=f"modules={module}.*pip install {module}"):
        require_modules(look)


def test_what_is_installed_is_not_asked_for() -> None:
    require_modules(PlanAnalysis(stateful_kinds=("Aggregate",), modules=("json.decoder",)))
    require_modules(PlanAnalysis())
