"""How rough a simulated world is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How rough a world is; each rate is the chance per move, or per step inside one.

    Attributes:
        kill, pause, resume, start: of whole coordinator processes.
        fail_region, fail_task: of what Spark runs.
        lost_answer, refused: of the store; unreached, unanswered: of the broker.
        unread: of looks at the store, and at the file system.
        processes: at most so many coordinators are ever started before the calm.
        steps: moves before the calm.
        add: of partitions.
        expire: of open transactions, by the broker's own timeout; what was decided is repaired.
        old: a batch must be decided soon, or its transactions may expire.
        sleeps: the host, while the clock of all that waits hangs.
        lost_stops: it is not repaired, the job stops with the ranges.
        accepted: a person accepts what is reported then, and starts the job again; starts have little
            time, so that some of a decision may still be open when they tell of the rest.
        some_repair: each start repairs what is lost, or stops with it.
        late: of requests to the broker that come late, or twice, and of renames that do.
        markers: the broker's markers wait for a step of their own.
        level: the broker's ``transaction.version``; None: by the seed.
        disk: checkpoints lie on a model file system, in the production store.
        short: checkpoints may have little time, and few of them are kept, by the seed.
        max_concurrent: checkpoints under way at once.
        stateful: regions have a batch after each one with records, and Spark replays their last.
        external: the drop-in: batches trigger checkpoints, Spark replays its own log.
        regional: checkpoints are decided without regions that failed or are late.
        shared_output: all regions write one output partition.
        delayed: a region that failed begins again after growing delays, by its restart strategy.
        suspend: a region that fails a second time, or for good, is suspended.
        command: the chance that somebody restarts regions, suspended ones or others.
        asked: the chance that somebody asks for a checkpoint of a kind, stops the job, or has a
            region that attempts begin again.
        move: the chance that a decision moves a split, and then the next one.
        rescale: each start has one to so many regions; 0: all have ``regions``.
        files: regions write files, too.
        only_files: and nothing to Kafka.
        roll: files are held over epochs, and merged, before they are published.
        keyed: tasks keep state for the records of a split, in files; on a ``disk``.
        shared: regions share operator lists, a repartition topic and a broadcast stream; ``keyed``, in
            micro-batches, and no files.
        topic: the last region reads what the first one writes; ``keyed``, with any engine.
        continuous: regions are long tasks, whose epochs follow one another undecided.
        outlived: coordinators are processes of their own: tasks outlive them, and a later one takes
            them over; only with ``continuous``.
        engines: each start takes one of the two.
        tasks: a batch has at most so many sink tasks, each with a transaction of its own.
        torn: a coordinator dies in the middle of a commit round.
        meanwhile: somebody else continues between two requests of a round.
        broken_repairs: a repair fails at a record, or, four times as seldom, its process dies.
        forget: a transactional id expires at the broker; of what it skipped no broker knows then,
            so a person looks, says it, and starts the job again.
        txn: somebody gives a command of ``sluice txn``, or it continues.
        clean: somebody gives a command of ``sluice files clean --delete``, or it continues; on a
            ``disk``.
        restore: somebody starts the job from an older checkpoint, and is started again, at times
            with the same wish.
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
