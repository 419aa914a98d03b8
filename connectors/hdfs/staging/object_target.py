"""The directory that a file sink writes in an object store, and how each process reaches it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.connectors.hdfs.staging.staged_names import split_target
from sluice.runtime.storage.file_system import FileSystem, OpenFileSystem
from sluice.runtime.storage.file_system_opening import is_object_store
from sluice.runtime.storage.objects.multipart_uploads import MultipartUploads
from sluice.runtime.storage.objects.object_file_system import ObjectFileSystem
from sluice.runtime.storage.objects.object_location import ObjectLocation, object_location
from sluice.runtime.storage.objects.object_uploads import uploads_at

__all__ = ["ObjectTarget"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectTarget:
    """A target with the options of its store. Picklable; the driver resolves the environment.

    Attributes:
        uri: of the directory that readers read.
        options: of its store, before the environment's.
    """

    uri: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold keys

    @property
    def parent(self) -> ObjectLocation:
        """The location above it, with the options and variables of this process."""
        return self.locate(split_target(self.uri)[0])

    def locate(self, uri: str) -> ObjectLocation:
        """A URI of the same store."""
        return object_location(uri, self.options)

    def open_uploads(self, uri: str) -> MultipartUploads:
        """The uploads below a URI of the same store."""
        return uploads_at(self.locate(uri))

    def opener(self, others: OpenFileSystem) -> OpenFileSystem:
        """Opens any file system, this one's with its options.

        Args:
            others: opens those that are no object stores.
        """

        def opened(uri: str) -> FileSystem:
            if is_object_store(uri):
                return ObjectFileSystem(self.locate(uri))
            return others(uri)

        return opened
