"""Finds open uploads that no decision can complete any more, and aborts them: rules `fence-first`
and `upload-settled`."""

import logging
from collections.abc import Iterable, Iterator

from sluice.connectors.hdfs.staging.upload_names import UploadName
from sluice.connectors.hdfs.staging.uploaded_files import UPLOADS_KIND, decode_upload_set
from sluice.runtime.contracts import SweepView
from sluice.runtime.errors import StreamError
from sluice.runtime.storage.objects.multipart_uploads import MultipartUploads, OpenUpload

__all__ = ["UploadSweeper", "orphan_uploads", "uploads_of"]

log = logging.getLogger(__name__)


def uploads_of(
    found: Iterable[OpenUpload], *, sink: str, regions: Iterable[str] = ()
) -> Iterator[tuple[OpenUpload, UploadName]]:
    """The uploads of one sink of one job, with what their names say."""
    known = tuple(regions)
    for upload in found:
        name = UploadName.parse(upload.key.rpartition("/")[2], regions=known)
        if name is not None and name.sink == sink:
            yield upload, name


def orphan_uploads(
    found: Iterable[OpenUpload], view: SweepView, *, sink: str, operator_id: str
) -> list[OpenUpload]:
    """The uploads among ``found`` that may be aborted. Pure.

    An upload may be aborted if no protected committable names it, and one of three is true: its
    region's attempt is over, its batch is committed on record, or the coordinator has declared
    exactly this attempt an orphan. A repeated request may have begun two uploads of one name, so
    only the id says which one is named.

    Args:
        found: uploads below the target, also of other programs.
        sink: the tag of this sink and job.
        operator_id: of this sink.
    """
    named = {
        file.upload_id
        for entry in view.protected
        if entry.kind == UPLOADS_KIND and entry.operator_id == operator_id
        for file in decode_upload_set(entry).files
    }
    declared = {one.resource for one in view.orphans if one.operator_id == operator_id}
    return [
        upload
        for upload, name in uploads_of(found, sink=sink, regions=view.attempt_ids)
        if upload.upload_id not in named
        and (
            view.is_attempt_over(name.attempt.batch.region, name.attempt.batch.attempt_id)
            or view.is_settled(name.attempt.batch)
            or name.attempt.path in declared
        )
    ]


class UploadSweeper:
    """Lists, decides by `orphan_uploads`, aborts. Driver, one thread; keeps nothing between sweeps.

    A task that outlives its batch may begin an upload afterwards: the next sweep, or the next
    start, finds it.

    Args:
        uploads: below the parent of the target.
        target_name: the target, relative to that parent.
        sink: the tag of this sink and job.
        operator_id: of the sink.
    """

    def __init__(
        self, uploads: MultipartUploads, *, target_name: str, sink: str, operator_id: str
    ) -> None:
        self._uploads = uploads
        self._prefix = f"{target_name}/"
        self._sink = sink
        self._operator_id = operator_id

    def sweep(self, view: SweepView) -> int:
        """One pass; returns how many uploads were aborted. Never raises for a store."""
        aborted = 0
        try:
            found = self._uploads.open_uploads(self._prefix)
            for upload in orphan_uploads(
                found, view, sink=self._sink, operator_id=self._operator_id
            ):
                self._uploads.abort(upload.key, upload.upload_id)
                log.info("orphaned upload aborted: key=%s id=%s", upload.key, upload.upload_id)
                aborted += 1
        except StreamError as err:
            log.warning(
                "uploads were not swept, the next sweep tries again: uri=%s error=%s",
                self._uploads.uri,
                err,
            )
        return aborted
