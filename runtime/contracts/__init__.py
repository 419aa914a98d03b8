"""The promises between the runtime and connectors: connectors implement, `runtime` calls.

Every blocking call takes a timeout in seconds. ``driver`` below means the user's own Python
process, where the coordinator runs; ``executor`` means a Python worker of a Spark task.
"""

from runtime.contracts.committing import (
    Clock,
    CommitOutcome,
    CommitReport,
    Committer,
    RegisteredAttempt,
    SinkContext,
    SinkCoordinator,
    SweepView,
)
from runtime.contracts.coordination import Coordinator
from runtime.contracts.operators import (
    DeadLetterSink,
    DeserializingSource,
    EventTimeSink,
    FrameSink,
    RateLimitedSource,
    Sink,
    Source,
    SourceFunction,
    SplitEnumerator,
    TaskSink,
)
from runtime.contracts.regional import (
    FailedScope,
    FailedTask,
    FailureReason,
    RegionCheckpointFailedDetail,
    RegionFollower,
    RegionProgress,
    RegionWork,
    SharedCommitter,
)
from runtime.contracts.storage import MetadataStore, PublishOutcome
from runtime.contracts.writing import (
    AttemptRegistry,
    DeadLetterWriter,
    Frame,
    FrameWriter,
    SinkWriter,
    SplitReader,
    StagedFrame,
    TaskScope,
    TimedSplitReader,
    WriterFactory,
)

__all__ = [
    "AttemptRegistry",
    "Clock",
    "CommitOutcome",
    "CommitReport",
    "Committer",
    "Coordinator",
    "DeadLetterSink",
    "DeadLetterWriter",
    "DeserializingSource",
    "EventTimeSink",
    "FailedScope",
    "FailedTask",
    "FailureReason",
    "Frame",
    "FrameSink",
    "FrameWriter",
    "MetadataStore",
    "PublishOutcome",
    "RateLimitedSource",
    "RegionCheckpointFailedDetail",
    "RegionFollower",
    "RegionProgress",
    "RegionWork",
    "RegisteredAttempt",
    "SharedCommitter",
    "Sink",
    "SinkContext",
    "SinkCoordinator",
    "SinkWriter",
    "Source",
    "SourceFunction",
    "SplitEnumerator",
    "SplitReader",
    "StagedFrame",
    "SweepView",
    "TaskScope",
    "TaskSink",
    "TimedSplitReader",
    "WriterFactory",
]
