"""What readers of a bucket see, and the uploads that are open there."""

import io
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq
from botocore.session import get_session

from tests.kit.objects.s3_fixture import S3Bucket


@dataclass(frozen=True)
class PublishedObjects:
    """A bucket as a reader sees it; with a client of its own."""

    bucket: S3Bucket

    @property
    def _client(self) -> Any:
        options = self.bucket.storage_options
        return get_session().create_client(
            "s3",
            endpoint_url=options["aws_endpoint_url"],
            region_name=options["aws_region"],
            aws_access_key_id=options["aws_access_key_id"],
            aws_secret_access_key=options["aws_secret_access_key"],
        )

    def keys(self, prefix: str = "") -> list[str]:
        """Of all objects below a prefix."""
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket.name, Prefix=prefix
        )
        return sorted(each["Key"] for page in pages for each in page.get("Contents", ()))

    def open_uploads(self, prefix: str = "") -> list[str]:
        """Keys of the uploads that are neither completed nor aborted."""
        pages = self._client.get_paginator("list_multipart_uploads").paginate(
            Bucket=self.bucket.name, Prefix=prefix
        )
        return sorted(each["Key"] for page in pages for each in page.get("Uploads", ()))

    def read(self, key: str) -> bytes:
        """An object."""
        return bytes(self._client.get_object(Bucket=self.bucket.name, Key=key)["Body"].read())

    def parquet_rows(self, prefix: str) -> list[dict[str, Any]]:
        """All rows of the Parquet files below a prefix."""
        client, rows = self._client, []
        for key in self.keys(prefix):
            if key.endswith(".parquet"):
                data = client.get_object(Bucket=self.bucket.name, Key=key)["Body"].read()
                rows += pq.read_table(io.BytesIO(data)).to_pylist()
        return rows

    def counted(self, prefix: str) -> Counter[bytes]:
        """How often each value is in the Parquet files below a prefix."""
        return Counter(row["value"] for row in self.parquet_rows(prefix))
