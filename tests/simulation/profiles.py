"""The worlds there are, and which of them a seed is."""

import random
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from tests.simulation.led_profiles import LED_PROFILES
from tests.simulation.profile import Profile

_LONG_RUNS: dict[str, Any] = {"kill": 0.001, "pause": 0.002, "start": 0.002, "processes": 4}
_ANSWERED: dict[str, Any] = {"unreached": 0.0, "unanswered": 0.0, "late": 0.0}
_TASKS: dict[str, Any] = {"continuous": True}
_FILES: dict[str, Any] = {"files": True, "only_files": True}
_SEVERAL: dict[str, Any] = {"tasks": 3, "partitions": 6}  # transactions in a batch
_TORN: dict[str, Any] = {**_SEVERAL, "torn": 0.1, "meanwhile": 0.2}
_PEOPLE: dict[str, Any] = {"disk": True, "txn": 0.2}
_CLEANED: dict[str, Any] = {"disk": True, "clean": 0.2}
_KEYED: dict[str, Any] = {"keyed": True, "disk": True, "add": 0.0}
_RESTORES: dict[str, Any] = {"restore": 0.08, "kill": 0.02, "start": 0.05, "processes": 12}

_REPAIRED_BY_SOME = Profile(
    expire=0.1,
    lost_stops=True,
    accepted=True,
    some_repair=True,
    kill=0.02,
    pause=0.05,
    start=0.1,
    processes=16,
    steps=200,
)

PROFILES: Mapping[str, Profile] = {
    "ordinary": Profile(),
    "stateful": Profile(stateful=True),
    "drop-in": Profile(external=True),
    "three checkpoints at once": Profile(max_concurrent=3),
    "many kills": Profile(kill=0.05, start=0.1, processes=12),
    "paused coordinators wake up": Profile(pause=0.05, resume=0.02, start=0.1, processes=10),
    "regions and tasks fail": Profile(fail_region=0.05, fail_task=0.2),
    "answers are lost": Profile(lost_answer=0.2, refused=0.2, unreached=0.2, unanswered=0.2),
    "one output for three regions": Profile(regions=3, shared_output=True),
    "elected leaders wake up": Profile(
        led=True, pause=0.06, resume=0.03, start=0.1, kill=0.02, processes=12
    ),
    "elected leaders, a store that answers late": Profile(
        led=True, disk=True, unread=0.05, late=0.1, pause=0.03, start=0.1, processes=10
    ),
    "failed and late regions are skipped": Profile(
        regions=3, regional=True, fail_region=0.03, fail_task=0.1
    ),
    "skipped regions of one output": Profile(
        regions=4, partitions=5, regional=True, fail_region=0.02, shared_output=True
    ),
    "stateful regions are skipped": Profile(
        regions=3, regional=True, stateful=True, fail_region=0.03
    ),
    "looks fail": Profile(unread=0.05, kill=0.02, pause=0.02, start=0.05, processes=8),
    "looks fail on a file system": Profile(
        unread=0.05, disk=True, kill=0.02, pause=0.02, start=0.1, late=0.1, processes=8
    ),
    "looks fail, transactions expire and are repaired": Profile(
        unread=0.03, disk=True, expire=0.05, kill=0.03, processes=8
    ),
    "looks at files fail": Profile(**_FILES, unread=0.05, late=0.1, lost_answer=0.1, kill=0.02),
    "looks at held files fail": Profile(
        **_FILES, roll=True, unread=0.03, kill=0.03, fail_task=0.1, start=0.05
    ),
    "people ask": Profile(asked=0.01, kill=0.005),
    "people ask, regions are skipped": Profile(
        asked=0.02, regions=3, regional=True, fail_region=0.03, disk=True
    ),
    "people ask, regions come back after delays": Profile(
        asked=0.01, regions=3, delayed=True, fail_region=0.03
    ),
    "people ask, transactions expire and are repaired": Profile(
        asked=0.01, expire=0.05, kill=0.03, processes=8
    ),
    "people ask, continuous tasks": Profile(**_TASKS, asked=0.01, max_concurrent=2),
    "people ask, held files": Profile(**_FILES, roll=True, asked=0.01, kill=0.02),
    "many savepoints and stops": Profile(asked=0.05, kill=0.01, fail_region=0.01, start=0.03),
    "many savepoints and stops, held files": Profile(
        **_FILES, roll=True, asked=0.05, kill=0.01, start=0.03, regions=2, regional=True
    ),
    "many savepoints and stops beside suspended regions": Profile(
        asked=0.05, regions=3, regional=True, suspend=True, command=0.02, fail_region=0.02
    ),
    "many savepoints and stops, stateful, on a file system": Profile(
        asked=0.05, stateful=True, disk=True, fail_region=0.02, late=0.1, kill=0.01
    ),
    "many savepoints and stops, continuous tasks": Profile(
        **_TASKS, asked=0.05, fail_region=0.02, kill=0.01
    ),
    "checkpoints have little time": Profile(short=True, fail_task=0.1, kill=0.02),
    "checkpoints have little time, on a file system": Profile(
        short=True, disk=True, regions=3, lost_answer=0.1, kill=0.02, start=0.05, processes=8
    ),
    "few of three checkpoints at once are kept": Profile(
        short=True, max_concurrent=3, lost_answer=0.1, refused=0.1, kill=0.02
    ),
    "continuous epochs have little time": Profile(**_TASKS, short=True, max_concurrent=2),
    "skipped regions have little time": Profile(
        short=True, regions=3, regional=True, fail_region=0.03, fail_task=0.1
    ),
    "held files, few checkpoints are kept": Profile(
        **_FILES, roll=True, short=True, kill=0.02, late=0.05
    ),
    "partitions are added, regions are skipped": Profile(
        regions=3, regional=True, add=0.1, fail_region=0.03
    ),
    "partitions are added, regions come back after delays": Profile(
        regions=3, partitions=2, add=0.1, delayed=True, fail_region=0.05, kill=0.02
    ),
    "partitions are added, splits move and regions are skipped": Profile(
        regions=3, partitions=2, add=0.1, regional=True, move=0.5, fail_region=0.03
    ),
    "partitions are added, continuous regions are skipped": Profile(
        **_TASKS, regions=3, partitions=2, add=0.1, regional=True, fail_region=0.03
    ),
    "regions are skipped while every broker answers": Profile(
        regions=3, regional=True, fail_region=0.05, **_ANSWERED
    ),
    "continuous regions are skipped while every broker answers": Profile(
        **_TASKS, regions=3, regional=True, fail_region=0.05, **_ANSWERED
    ),
    "regions come back after delays": Profile(
        regions=3, delayed=True, fail_region=0.05, fail_task=0.1
    ),
    "others continue without regions that come back after delays": Profile(
        regions=3, delayed=True, regional=True, fail_region=0.03, shared_output=True
    ),
    "regions are suspended": Profile(
        regions=4,
        partitions=5,
        suspend=True,
        command=0.003,
        fail_region=0.01,
        steps=200,
        **_LONG_RUNS,
    ),
    "suspended beside skipped regions of one output": Profile(
        regions=4,
        partitions=5,
        suspend=True,
        command=0.005,
        fail_region=0.02,
        regional=True,
        max_concurrent=2,
        shared_output=True,
        steps=200,
        **_LONG_RUNS,
    ),
    "stateful regions are suspended": Profile(
        regions=3,
        suspend=True,
        command=0.01,
        fail_region=0.02,
        stateful=True,
        steps=200,
        **_LONG_RUNS,
    ),
    "regions are suspended while every broker answers": Profile(
        regions=4,
        partitions=5,
        suspend=True,
        command=0.005,
        fail_region=0.03,
        steps=200,
        **_LONG_RUNS,
        **_ANSWERED,
    ),
    "splits move past suspended regions": Profile(
        regions=4,
        partitions=6,
        suspend=True,
        command=0.005,
        fail_region=0.01,
        move=0.6,
        steps=200,
        **_LONG_RUNS,
    ),
    "transactions expire and are repaired": Profile(expire=0.05, kill=0.03, processes=8),
    "splits move": Profile(regions=3, partitions=4, move=0.6, steps=200),
    "splits move, many kills": Profile(
        regions=3, partitions=4, move=0.6, steps=200, kill=0.03, start=0.1, processes=12
    ),
    "splits move between regions of one output": Profile(
        regions=3, partitions=4, move=0.6, steps=200, shared_output=True, pause=0.03, start=0.1
    ),
    "splits move beside skipped regions": Profile(
        regions=4, partitions=6, move=0.6, steps=200, regional=True, fail_region=0.02
    ),
    "splits move, transactions expire": Profile(
        regions=3, partitions=4, move=0.6, steps=200, expire=0.03, kill=0.02, lost_answer=0.1
    ),
    "other numbers of regions": Profile(
        rescale=4, partitions=5, kill=0.03, start=0.1, processes=12
    ),
    "other numbers of regions, answers are lost": Profile(
        rescale=4, partitions=5, start=0.1, pause=0.03, lost_answer=0.2, unanswered=0.2
    ),
    "other numbers of regions, one output": Profile(
        rescale=3, partitions=4, kill=0.02, start=0.1, processes=10, shared_output=True
    ),
    "other numbers of regions beside skipped ones": Profile(
        rescale=4, partitions=6, kill=0.02, processes=10, regional=True, fail_region=0.02
    ),
    "other numbers of regions, splits move and transactions expire": Profile(
        rescale=4, partitions=5, kill=0.03, processes=10, move=0.5, expire=0.02
    ),
    "requests come late, or twice": Profile(late=0.2, kill=0.02, start=0.05, processes=8),
    "late requests and transactions that expire": Profile(
        late=0.15, expire=0.05, kill=0.02, processes=8
    ),
    "markers wait": Profile(markers=True, kill=0.02, late=0.05, regions=3, shared_output=True),
    "an old broker": Profile(level=0, late=0.1, kill=0.03, pause=0.02, start=0.1, processes=10),
    "an old broker, transactions expire and are repaired": Profile(
        level=0, late=0.1, expire=0.01, kill=0.02, pause=0.03, resume=0.02, start=0.1, processes=10
    ),
    "what expires is reported": Profile(expire=0.05, lost_stops=True, kill=0.03, processes=8),
    "what expires is reported and accepted": Profile(
        expire=0.05, lost_stops=True, accepted=True, kill=0.03, processes=12, unreached=0.1
    ),
    "one region's loss is reported and accepted before another's is known": Profile(
        expire=0.1,
        lost_stops=True,
        accepted=True,
        kill=0.03,
        unreached=0.5,
        regions=4,
        partitions=6,
        processes=16,
        steps=200,
    ),
    "what expires is reported and accepted, on a file system": Profile(
        expire=0.05, lost_stops=True, accepted=True, disk=True, kill=0.02, start=0.1, processes=12
    ),
    "what expires is repaired by some, reported by others and accepted": _REPAIRED_BY_SOME,
    "what expires is repaired by some and accepted, on a file system": replace(
        _REPAIRED_BY_SOME, disk=True
    ),
    "on a file system": Profile(disk=True, kill=0.02, pause=0.02, start=0.1, processes=8),
    "a file system with late renames": Profile(
        disk=True, late=0.2, refused=0.1, lost_answer=0.1, pause=0.03, start=0.1, processes=10
    ),
    "regions on a file system": Profile(
        disk=True, regions=3, regional=True, fail_region=0.02, late=0.1, move=0.3, kill=0.02
    ),
    "batches grow old and answers are lost": Profile(old=0.4, lost_answer=0.3, refused=0.3),
    "batches grow old, in three checkpoints at once, skipped and on disk": Profile(
        old=0.4, max_concurrent=3, regional=True, disk=True, late=0.1, lost_answer=0.2, kill=0.02
    ),
    "batches grow old while the host sleeps": Profile(
        old=0.5, sleeps=0.1, regional=True, lost_answer=0.2, refused=0.2, pause=0.03
    ),
    "batches of a drop-in grow old": Profile(
        old=0.4, external=True, disk=True, late=0.1, lost_answer=0.2, refused=0.2, kill=0.02
    ),
    "drop-in transactions expire": Profile(
        external=True, expire=0.05, lost_stops=True, accepted=True, kill=0.03, processes=8
    ),
    "continuous tasks": Profile(**_TASKS),
    "continuous tasks, many kills": Profile(**_TASKS, kill=0.05, start=0.1, processes=12),
    "continuous tasks, paused coordinators wake up": Profile(
        **_TASKS, pause=0.05, resume=0.02, start=0.1, processes=10
    ),
    "continuous tasks, answers are lost": Profile(
        **_TASKS, lost_answer=0.1, unreached=0.1, unanswered=0.2, max_concurrent=2
    ),
    **LED_PROFILES,
    "continuous tasks die": Profile(**_TASKS, fail_region=0.03, fail_task=0.2, late=0.1),
    "continuous tasks, requests come late, or twice": Profile(
        **_TASKS, late=0.2, kill=0.02, start=0.05, processes=8
    ),
    "continuous tasks, requests come twice, transactions expire": Profile(
        **_TASKS, late=0.2, expire=0.05, kill=0.03, start=0.05, processes=12
    ),
    "skipped continuous regions of one output": Profile(
        **_TASKS, regions=3, regional=True, fail_region=0.03, fail_task=0.1, shared_output=True
    ),
    "splits move between continuous tasks": Profile(
        **_TASKS, regions=3, partitions=5, move=0.6, fail_region=0.01, kill=0.02
    ),
    "continuous epochs grow old, others expire": Profile(
        **_TASKS, old=0.3, expire=0.03, lost_answer=0.1, kill=0.02, max_concurrent=2
    ),
    "either engine, with other numbers of regions": Profile(
        **_TASKS, engines=True, rescale=3, partitions=4, kill=0.03, start=0.1, processes=12
    ),
    "files beside Kafka": Profile(files=True, fail_task=0.1, late=0.05),
    "files, many kills": Profile(**_FILES, kill=0.05, start=0.1, fail_task=0.1, processes=12),
    "files, paused coordinators wake up": Profile(
        **_FILES, pause=0.05, resume=0.02, start=0.1, processes=10
    ),
    "files, answers are lost and renames come late": Profile(
        **_FILES, late=0.15, lost_answer=0.15, refused=0.1, kill=0.02, start=0.05, processes=8
    ),
    "files of a drop-in": Profile(files=True, external=True, kill=0.03, late=0.1, processes=8),
    "files are held over epochs": Profile(**_FILES, roll=True, kill=0.02, late=0.05),
    "held files, many kills and lost answers": Profile(
        **_FILES, roll=True, kill=0.05, start=0.1, lost_answer=0.1, late=0.1, processes=12
    ),
    "held files of skipped regions": Profile(
        files=True, roll=True, regions=3, regional=True, fail_region=0.03, fail_task=0.1, kill=0.02
    ),
    "held files of suspended regions": Profile(
        **_FILES,
        roll=True,
        regions=4,
        partitions=5,
        suspend=True,
        command=0.005,
        fail_region=0.02,
        regional=True,
        max_concurrent=2,
        **_LONG_RUNS,
    ),
    "held files of other numbers of regions": Profile(
        **_FILES, roll=True, rescale=4, partitions=5, kill=0.03, start=0.1, processes=12
    ),
    "held files beside transactions that expire and are repaired": Profile(
        files=True, roll=True, expire=0.05, kill=0.03, processes=8
    ),
    "held files whose batches grow old": Profile(
        **_FILES, roll=True, old=0.4, lost_answer=0.2, refused=0.2, late=0.1, disk=True
    ),
    "held files in three checkpoints at once, on disk": Profile(
        files=True, roll=True, max_concurrent=3, disk=True, late=0.1, kill=0.02, pause=0.02
    ),
    "files are cleaned manually": Profile(
        **_FILES, **_CLEANED, late=0.1, pause=0.05, resume=0.02, start=0.1, processes=10
    ),
    "held files are cleaned manually": Profile(
        **_FILES, **_CLEANED, roll=True, kill=0.03, start=0.1, processes=12
    ),
    "held files of other numbers of regions are cleaned manually": Profile(
        **_CLEANED, files=True, roll=True, short=True, rescale=4, partitions=5, kill=0.03
    ),
    "several tasks": Profile(**_SEVERAL, fail_task=0.1, meanwhile=0.2),
    "several tasks of a drop-in": Profile(**_SEVERAL, external=True, fail_task=0.1, kill=0.03),
    "several tasks of regions that are skipped": Profile(
        **_SEVERAL, regions=3, regional=True, fail_region=0.03, fail_task=0.1, shared_output=True
    ),
    "several tasks, requests come late, or twice": Profile(
        **_SEVERAL, late=0.2, meanwhile=0.2, kill=0.02, start=0.05, processes=8
    ),
    "several tasks, paused coordinators wake up": Profile(
        **_SEVERAL, meanwhile=0.3, pause=0.05, resume=0.02, start=0.1, processes=10
    ),
    "commits are torn": Profile(**_TORN, unanswered=0.1, kill=0.02, processes=10),
    "commits are torn, transactions expire and are repaired": Profile(
        **_TORN, expire=0.1, unreached=0.1, kill=0.02, processes=10
    ),
    "commits are torn in three checkpoints at once, and repaired": Profile(
        **_TORN, max_concurrent=3, expire=0.05, kill=0.02, processes=10
    ),
    "commits are torn on an old broker, transactions expire and are repaired": Profile(
        **_TORN, level=0, expire=0.05, late=0.1, kill=0.02, processes=10
    ),
    "commits are torn, what expires is reported and accepted": Profile(
        **_TORN, expire=0.1, lost_stops=True, accepted=True, unreached=0.2, kill=0.02, processes=12
    ),
    "repairs fail half-way": Profile(
        **_TORN, expire=0.1, broken_repairs=0.1, kill=0.02, processes=12
    ),
    "repairs fail half-way, on a file system": Profile(
        **_TORN, expire=0.1, broken_repairs=0.1, disk=True, late=0.1, kill=0.02, processes=12
    ),
    "repairs of several regions fail half-way": Profile(
        **_TORN, regions=3, shared_output=True, expire=0.1, broken_repairs=0.1, processes=12
    ),
    "repairs of continuous tasks fail half-way": Profile(
        **_TASKS, expire=0.1, broken_repairs=0.2, meanwhile=0.2, kill=0.02, processes=12
    ),
    "ids expire": Profile(forget=0.1, unreached=0.1, unanswered=0.1, kill=0.03, processes=12),
    "ids of several tasks expire": Profile(
        **_TORN, forget=0.1, unreached=0.1, unanswered=0.2, kill=0.02, processes=12
    ),
    "ids and transactions expire, what is lost is repaired": Profile(
        **_TORN, forget=0.1, expire=0.1, unreached=0.1, kill=0.02, processes=12
    ),
    "ids and transactions expire, what is lost is reported, on a file system": Profile(
        **_TORN,
        forget=0.1,
        expire=0.1,
        lost_stops=True,
        accepted=True,
        disk=True,
        kill=0.02,
        processes=12,
    ),
    "ids of continuous tasks expire": Profile(
        **_TASKS, forget=0.1, unreached=0.1, unanswered=0.2, kill=0.02, processes=12
    ),
    "people end transactions": Profile(**_PEOPLE, kill=0.05, pause=0.02, processes=10),
    "people end transactions of several tasks": Profile(
        **_PEOPLE, **_TORN, kill=0.05, unanswered=0.1, late=0.1, processes=10
    ),
    "people end transactions in three checkpoints at once": Profile(
        **_PEOPLE, **_TORN, max_concurrent=3, kill=0.03, unreached=0.1, processes=10
    ),
    "people end transactions, others expire and are repaired": Profile(
        **_PEOPLE, **_TORN, expire=0.1, kill=0.05, processes=10
    ),
    "people end transactions beside repairs that fail": Profile(
        **_PEOPLE, **_TORN, expire=0.1, broken_repairs=0.1, kill=0.02, start=0.05, processes=12
    ),
    "people end transactions whose ids expire": Profile(
        **_PEOPLE, **_TORN, forget=0.1, expire=0.05, kill=0.03, processes=12
    ),
    "people end transactions of continuous tasks": Profile(
        **_PEOPLE, **_TASKS, expire=0.03, kill=0.05, late=0.1, processes=10
    ),
    "people end transactions on an old broker": Profile(
        **_PEOPLE, **_TORN, level=0, late=0.1, kill=0.05, processes=10
    ),
    "restores": Profile(**_RESTORES),
    "restores beside paused coordinators": Profile(**_RESTORES, pause=0.05, resume=0.03),
    "restores, answers are lost on a file system": Profile(
        **_RESTORES, disk=True, late=0.1, lost_answer=0.1, refused=0.1, pause=0.03
    ),
    "restores, looks fail on a file system": Profile(
        **_RESTORES, disk=True, unread=0.05, pause=0.03
    ),
    "restores, few checkpoints are kept": Profile(
        **_RESTORES, disk=True, short=True, pause=0.03, asked=0.01
    ),
    "restores of regions with state": Profile(**_RESTORES, stateful=True, pause=0.02),
    "restores of regions that are skipped": Profile(
        **_RESTORES, regions=3, regional=True, fail_region=0.03, fail_task=0.1
    ),
    "restores, partitions are added and splits move": Profile(
        **_RESTORES, regions=3, partitions=2, add=0.1, move=0.5, regional=True, fail_region=0.02
    ),
    "restores with other numbers of regions": Profile(
        **_RESTORES, rescale=4, partitions=5, shared_output=True, pause=0.02
    ),
    "restores, three checkpoints at once": Profile(
        **_RESTORES, max_concurrent=3, pause=0.03, lost_answer=0.1
    ),
    "restores, transactions expire and are repaired": Profile(**_RESTORES, expire=0.05),
    "restores, what expires is reported and accepted": Profile(
        **_RESTORES, expire=0.05, lost_stops=True, accepted=True, disk=True
    ),
    "restores, commits are torn and ids expire": Profile(
        **_RESTORES, **_TORN, forget=0.1, unreached=0.1, unanswered=0.1
    ),
    "restores, people end transactions": Profile(**_RESTORES, **_PEOPLE, pause=0.02),
    "restores on an old broker, requests come late": Profile(**_RESTORES, level=0, late=0.15),
    "restores of continuous tasks": Profile(**_RESTORES, **_TASKS, max_concurrent=2, pause=0.03),
    "restores with either engine and other numbers of regions": Profile(
        **_RESTORES, **_TASKS, engines=True, rescale=3, partitions=4
    ),
    "restores of files": Profile(**_RESTORES, **_FILES, late=0.1, lost_answer=0.1, pause=0.03),
    "restores of held files": Profile(**_RESTORES, **_FILES, roll=True, late=0.05, pause=0.02),
    "restores of held files, cleaned manually": Profile(
        **_RESTORES, **_FILES, **_CLEANED, roll=True, late=0.05, pause=0.02
    ),
    "restores of held files, few checkpoints are kept, other numbers of regions": Profile(
        **_RESTORES, files=True, roll=True, short=True, rescale=3, partitions=4, disk=True
    ),
    "keyed state, many kills": Profile(**_KEYED, kill=0.05, start=0.1, processes=12),
    "keyed state, paused coordinators wake up, few checkpoints are kept": Profile(
        **_KEYED, short=True, pause=0.05, resume=0.03, start=0.1, late=0.1, processes=10
    ),
    "keyed state, answers are lost and looks fail": Profile(
        **_KEYED, lost_answer=0.1, refused=0.1, unread=0.03, kill=0.02, processes=8
    ),
    "keyed state of regions that are skipped": Profile(
        **_KEYED, regions=3, regional=True, fail_region=0.03, fail_task=0.1, short=True
    ),
    "keyed state moves with its splits": Profile(
        **_KEYED, regions=3, partitions=5, move=0.5, regional=True, fail_region=0.03
    ),
    "keyed state, three checkpoints at once": Profile(
        **_KEYED, max_concurrent=3, regions=3, regional=True, fail_region=0.02
    ),
    "keyed state, other numbers of regions": Profile(
        **_KEYED, rescale=4, partitions=5, kill=0.03, start=0.1, processes=10
    ),
    "keyed state of continuous tasks, many kills": Profile(
        **_KEYED, **_TASKS, kill=0.05, start=0.1, fail_task=0.1, processes=12
    ),
    "keyed state of continuous tasks, skipped": Profile(
        **_KEYED, **_TASKS, regions=3, regional=True, fail_region=0.03, short=True
    ),
    "keyed state of continuous tasks moves with its splits": Profile(
        **_KEYED, **_TASKS, regions=3, partitions=5, move=0.5, fail_region=0.02, short=True
    ),
    "keyed state of continuous tasks, answers are lost": Profile(
        **_KEYED, **_TASKS, lost_answer=0.1, refused=0.1, unanswered=0.1, late=0.1, pause=0.03
    ),
    "keyed state with either engine and other numbers of regions": Profile(
        **_KEYED,
        **_TASKS,
        engines=True,
        rescale=3,
        partitions=4,
        kill=0.03,
        start=0.1,
        processes=10,
    ),
    "many savepoints and stops, keyed state": Profile(
        **_KEYED, **_TASKS, asked=0.05, kill=0.01, fail_region=0.01, start=0.03, short=True
    ),
    "what regions share": Profile(
        **_KEYED, shared=True, regions=3, kill=0.03, start=0.1, processes=10
    ),
    "what regions share, skipped": Profile(
        **_KEYED, shared=True, regions=3, regional=True, fail_region=0.03, fail_task=0.1
    ),
    "what regions share, other numbers of regions": Profile(
        **_KEYED, shared=True, rescale=4, partitions=5, kill=0.03, start=0.1, processes=10
    ),
    "what regions share, restores": Profile(
        **_RESTORES, **_KEYED, shared=True, rescale=3, partitions=4, pause=0.03
    ),
    "restores of keyed state": Profile(**_RESTORES, **_KEYED, pause=0.03, short=True),
    "restores of keyed state in continuous tasks": Profile(
        **_RESTORES, **_KEYED, **_TASKS, engines=True, rescale=3, partitions=4, pause=0.03
    ),
}

_NAMES = tuple(PROFILES)


def profile_of(seed: int) -> tuple[str, Profile]:
    """The name and the profile of the schedule that a seed stands for: short, as a rule.

    A few moves reach most of what can go wrong, and thousands of short worlds see more of it than
    a hundred long ones.
    """
    dice = random.Random(seed)
    name = dice.choice(_NAMES)
    return name, _with_steps(name, dice.randint(5, 30))


@cache
def _with_steps(name: str, steps: int) -> Profile:
    return replace(PROFILES[name], steps=steps)
