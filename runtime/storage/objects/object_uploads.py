"""Opens the multipart uploads of a location, by its scheme."""

import pickle
import threading
from collections.abc import Mapping
from typing import Any

from sluice.runtime.extras import extras_named
from sluice.runtime.storage.objects.multipart_uploads import MultipartUploads
from sluice.runtime.storage.objects.object_location import ObjectLocation

__all__ = ["uploads_at"]

_opened: dict[bytes, MultipartUploads] = {}
_lock = threading.Lock()

# obstore knows more spellings of an option than its documentation shows first.
_S3_CLIENT = {
    "aws_access_key_id": "aws_access_key_id",
    "access_key_id": "aws_access_key_id",
    "aws_secret_access_key": "aws_secret_access_key",
    "secret_access_key": "aws_secret_access_key",
    "aws_session_token": "aws_session_token",
    "aws_token": "aws_session_token",
    "session_token": "aws_session_token",
    "token": "aws_session_token",
    "aws_endpoint_url_s3": "endpoint_url",
    "aws_default_region": "region_name",
    "default_region": "region_name",
    "aws_region": "region_name",
    "region": "region_name",
}
_DEFAULT_REGION = "us-east-1"


def uploads_at(location: ObjectLocation) -> MultipartUploads:
    """The uploads below a location. One client serves a process: making one takes 0.1 s.

    Raises:
        MissingRequirementError: a package of the extra ``objects`` is not installed.
    """
    key = pickle.dumps(location)
    with _lock:
        if key not in _opened:
            _opened[key] = _made(location)
        return _opened[key]


def _made(location: ObjectLocation) -> MultipartUploads:
    prefix = f"{location.prefix}/" if location.prefix else ""
    with extras_named():
        if location.scheme == "s3":
            from sluice.runtime.storage.objects.s3_uploads import S3Uploads

            client, config = s3_arguments(location.config, location.client)
            return S3Uploads(bucket=location.bucket, prefix=prefix, client=client, config=config)
        if location.scheme == "gs":
            from sluice.runtime.storage.objects.google_uploads import GoogleUploads

            return GoogleUploads(
                bucket=location.bucket, prefix=prefix, scheme="gs", google=location.config
            )
        from sluice.runtime.storage.objects.azure_uploads import AzureUploads

        return AzureUploads(location=location)


def s3_arguments(
    config: Mapping[str, str], client: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments of botocore's client, and of its `Config`, for options of obstore. Pure."""
    arguments: dict[str, Any] = {"region_name": _DEFAULT_REGION}
    for name, argument in _S3_CLIENT.items():
        if name in config:
            arguments[argument] = config[name]
    settings: dict[str, Any] = {}
    is_virtual = config.get("aws_virtual_hosted_style_request", "").lower() == "true"
    # As obstore does: the bucket is in the path unless the user asks for the host.
    settings["s3"] = {"addressing_style": "virtual" if is_virtual else "path"}
    if config.get("aws_skip_signature", "").lower() == "true":
        from botocore import UNSIGNED

        settings["signature_version"] = UNSIGNED
    if client.get("allow_invalid_certificates", "").lower() == "true":
        arguments["verify"] = False
    if "proxy_url" in client:
        settings["proxies"] = {"http": client["proxy_url"], "https": client["proxy_url"]}
    return arguments, settings
