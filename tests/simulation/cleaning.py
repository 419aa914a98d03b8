"""Somebody who uses ``sluice files clean --delete`` beside a job, and takes his time."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sluice.connectors.hdfs.tools.files_survey import orphans_of
from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.inspect.inspection import survey
from sluice.runtime.checkpoint.resumable_attempts import ResumableAttempts
from sluice.runtime.errors import StreamError
from sluice.runtime.storage.objects.multipart_uploads import MultipartUploads
from tests.kit.files.fake_file_system import FakeFileSystem, SimulatedCrashError
from tests.simulation.files import open_files

if TYPE_CHECKING:
    from tests.simulation.world import World


def no_uploads(uri: str) -> MultipartUploads:
    """The simulated files lie in no object store."""
    raise AssertionError(uri)


class Cleaner:
    """The command's own code, which others may overtake between any two looks and deletions.

    Attributes:
        deleted: how many staging directories.
    """

    def __init__(self, world: "World") -> None:
        self._world = world
        self._command: Iterator[None] | None = None
        self.deleted = 0

    def move(self) -> None:
        """The command continues, or a new one begins."""
        if self._command is None:
            self._command = self._clean()
        try:
            next(self._command)
            return
        except StopIteration:
            pass
        except SimulatedCrashError:
            self._world.note("the command is interrupted")
        except StreamError as err:
            self._world.note(f"the command fails: {err.args[0]}")
        self._command = None

    def _clean(self) -> Iterator[None]:
        store = CheckpointStore(FakeFileSystem(self._world.disk))
        if not store.slots():
            return
        places = survey(store)
        self._world.note(f"somebody looks at places {places[0].checkpoint_id} to the last one")
        yield
        fs = open_files(self._world)
        found = list(
            orphans_of(
                places,
                lambda _: fs,
                no_uploads,
                checkpoint_uri=store.uri,
                resumable=ResumableAttempts(store.fs).running(),
            )
        )
        yield
        for one in found:
            self._world.note(f"{one.path} is deleted manually")
            self.deleted += 1
            fs.delete(one.path)
            yield
