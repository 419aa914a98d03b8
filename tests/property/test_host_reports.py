"""Reports of region hosts and the last decision, in any order and number: what resumes continues
exactly where the decision ends, and no work is forgotten."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from sluice.runtime.contracts import OpenWork, RegionRegistration
from sluice.runtime.failover.reconciling import Finding, Reconciled, reconciled
from sluice.runtime.model.checkpoint_record import RegionRecord
from sluice.runtime.model.splits import BatchKey
from tests.kit.coordinator.core_driver import committable, split

_REGIONS = ("a", "b")
_OWN = 9


def _epoch(region: str, attempt_id: int, batch_id: int, start: int) -> OpenWork:
    return OpenWork(
        batch=BatchKey(region=region, attempt_id=attempt_id, batch_id=batch_id),
        committables=(committable(f"{region}.{attempt_id}.{batch_id}"),),
        splits=(split(0, start, start + 10),),
    )


@st.composite
def _reports(draw: st.DrawFn) -> RegionRegistration:
    region = draw(st.sampled_from(_REGIONS))
    attempt_id = draw(st.integers(0, _OWN))
    first = draw(st.integers(0, 6))
    epochs = tuple(
        _epoch(region, attempt_id, first + i, draw(st.sampled_from((0, 10 * (first + i)))))
        for i in range(draw(st.integers(0, 2)))
    )
    return RegionRegistration(
        region=region, attempt_id=attempt_id, open=epochs, may_resume=draw(st.booleans())
    )


_RECORDS = st.fixed_dictionaries(
    {
        name: st.builds(
            lambda attempt_id, batch_id, name=name: RegionRecord(
                region=name,
                attempt_id=attempt_id,
                batch_id=batch_id,
                splits=(split(0, 10 * batch_id, 10 * batch_id + 10),),
            ),
            st.integers(0, _OWN - 1),
            st.integers(0, 6),
        )
        for name in _REGIONS
    }
)


@given(
    reports=st.lists(_reports(), max_size=6),
    decided=_RECORDS,
    listed=st.dictionaries(st.sampled_from(_REGIONS), st.integers(0, _OWN)),
    again=st.randoms(use_true_random=False),
)
def test_what_resumes_continues_the_decision_and_no_work_is_forgotten(
    reports: list[RegionRegistration],
    decided: dict[str, RegionRecord],
    listed: dict[str, int],
    again: Random,
) -> None:
    def outcome(told: Sequence[RegionRegistration]) -> Reconciled:
        return reconciled(told, decided, own_attempt=_OWN, listed=listed, unchanged=_REGIONS)

    found = outcome(reports)
    assert found.findings.keys() == decided.keys()
    for name, report in found.resumed.items():
        record = decided[name]
        assert found.findings[name] is Finding.MATCHES
        assert record.attempt_id <= report.attempt_id == listed[name] < _OWN
        assert report.may_resume
        assert len(report.open) <= 1
        for work in report.open:
            assert work.splits[0].start_offset == record.splits[0].end_offset
    left = {report.attempt_id for report in found.left}
    for report in reports:
        is_resumed = found.attempts.get(report.region) == report.attempt_id
        assert is_resumed or report.attempt_id in left
    repeated = [*reports, *reports]
    again.shuffle(repeated)
    assert outcome(repeated).findings == found.findings
    assert outcome([*repeated]).attempts == found.attempts
    older = [replace(report, attempt_id=0, may_resume=False) for report in reports]
    if all(report.attempt_id > 0 for report in reports):
        assert outcome([*reports, *older]).attempts == found.attempts
