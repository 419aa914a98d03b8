"""What a task is reported its work, where a test asks nothing of it."""

from sluice.runtime.contracts import TaskScope
from sluice.runtime.model.splits import BatchKey

SCOPE = TaskScope(
    job_uid="j",
    operator_id="sink",
    batch=BatchKey(region="r", attempt_id=0, batch_id=0),
    checkpoint_id=1,
    committed_through=0,
)
"""The first batch of a region."""
