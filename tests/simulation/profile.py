"""How rough a simulated world is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How rough a world is. Each rate is a chance per move, or per step inside one.

    Attributes:
        kill, pause, resume, start: a whole coordinator process is killed, paused, resumed, started.
        fail_region, fail_task: an attempt of a region fails; a task of Spark fails.
        lost_answer, refused: the checkpoint store loses its answer; it refuses.
        unread: a read of the store or of the file system fails.
        unreached, unanswered: the broker does not get a request; its answer is lost.
        processes: the most coordinators that start before the calm.
        steps: moves before the calm.
        regions, partitions: number of them at the start.
        add: a partition is added.
        expire: an open transaction reaches its timeout. A decided one is repaired.
        old: a batch must be decided soon, or its transactions may expire.
        sleeps: the host sleeps, and the clock of everything that waits stands still.
        lost_stops: a decided transaction that expired stops the job, with the ranges in the error.
        accepted: an operator then accepts the loss, and starts the job again. Starts have little
            time, so parts of a decision may still be open.
        some_repair: each start either repairs a loss or stops with it.
        late: a request to the broker, or a rename, arrives late or twice.
        markers: the broker writes its transaction markers in a step of their own.
        level: ``transaction.version`` of the broker; None: chosen by the seed.
        disk: checkpoints are in the production store, on a model of a file system.
        short: the seed decides whether checkpoints have little time, and whether few are kept.
        max_concurrent: checkpoints under way at once.
        stateful: a further batch follows each one with records, and Spark replays its last one.
        external: the drop-in. Batches trigger checkpoints, and Spark replays its own log.
        regional: checkpoints are decided without regions that failed or are late.
        shared_output: all regions write one output partition.
        delayed: a region that failed restarts after growing delays, by its restart strategy.
        suspend: a region that fails a second time, or permanently, is suspended.
        command: an operator restarts regions, suspended ones or others.
        asked: an operator requests a checkpoint of some kind, stops the job, or restarts a region
            that has attempts.
        move: a decision moves a split, and the next decision moves another one.
        rescale: the most regions of a start; 0: all starts have ``regions``.
        files: regions also write files.
        only_files: regions write files, and nothing to Kafka.
        roll: files stay open over epochs, and are merged before they are published.
        keyed: tasks keep state for the records of a split, in files; on a ``disk``.
        shared: regions share operator lists, a repartition topic and a broadcast stream. With
            ``keyed``, in micro-batches, without files.
        topic: the last region reads what the first one writes. With ``keyed``, in both engines.
        continuous: regions are long tasks, whose epochs follow one another undecided.
        outlived: coordinators are processes of their own. Tasks continue after their death, and a
            later coordinator takes them over. Only with ``continuous``.
        engines: each start takes one of the two engines.
        tasks: the most sink tasks of a batch, each with a transaction of its own.
        torn: a coordinator dies in the middle of a round of commits.
        meanwhile: another process continues between two requests of such a round.
        broken_repairs: a repair fails at a record; or, four times as seldom, its process dies.
        forget: a transactional id expires at the broker. Then no broker knows how a skipped
            transaction ended, so an operator checks, confirms it, and starts the job again.
        txn: an operator runs a command of ``sluice txn``, or it continues.
        clean: an operator runs ``sluice files clean --delete``, or it continues; on a ``disk``.
        restore: an operator starts the job from an older checkpoint, and repeats that start, at
            times with the same checkpoint.
        led: each process was elected before its start, after all that were started before it.
    """

    kill: float = 0.01
    pause: float = 0.01
    resume: float = 0.05
    start: float = 0.02
    fail_region: float = 0.004
    fail_task: float = 0.03
    lost_answer: float = 0.03
    refused: float = 0.03
    unread: float = 0.0
    unreached: float = 0.03
    unanswered: float = 0.03
    processes: int = 6
    steps: int = 120
    regions: int = 2
    partitions: int = 3
    add: float = 0.01
    expire: float = 0.0
    old: float = 0.0
    sleeps: float = 0.0
    lost_stops: bool = False
    accepted: bool = False
    some_repair: bool = False
    late: float = 0.02
    markers: bool = False
    level: int | None = None
    disk: bool = False
    short: bool = False
    max_concurrent: int = 1
    stateful: bool = False
    external: bool = False
    regional: bool = False
    shared_output: bool = False
    delayed: bool = False
    suspend: bool = False
    command: float = 0.0
    asked: float = 0.0
    move: float = 0.0
    rescale: int = 0
    files: bool = False
    only_files: bool = False
    roll: bool = False
    keyed: bool = False
    shared: bool = False
    topic: bool = False
    continuous: bool = False
    outlived: bool = False
    engines: bool = False
    tasks: int = 1
    torn: float = 0.0
    meanwhile: float = 0.0
    broken_repairs: float = 0.0
    forget: float = 0.0
    txn: float = 0.0
    clean: float = 0.0
    restore: float = 0.0
    led: bool = False
