"""Where objects lie: URIs, options, the environment, and what is refused."""

import pickle

import pytest

from sluice.runtime.errors import ConfigError
from sluice.runtime.storage.objects.object_location import (
    hadoop_storage_options,
    is_storage_option,
    object_location,
)

_SET = {
    "AWS_ENDPOINT_URL": "http://localhost:9000/",
    "AWS_ACCESS_KEY_ID": "me",
    "AWS_SECRET_ACCESS_KEY": "hidden",
    "AWS_REGION": "eu-west-1",
}


class TestUris:
    @pytest.mark.parametrize(
        ("uri", "bucket", "prefix", "canonical"),
        [
            ("s3://b", "b", "", "s3://b"),
            ("s3://b/", "b", "", "s3://b"),
            ("s3a://b/one//two/", "b", "one/two", "s3://b/one/two"),
            ("gs://b/one/../two", "b", "two", "gs://b/two"),
            (
                "abfss://c@acc.dfs.core.windows.net/one",
                "c",
                "one",
                "abfss://c@acc.dfs.core.windows.net/one",
            ),
        ],
    )
    def test_a_uri_names_bucket_and_prefix(
        self, uri: str, bucket: str, prefix: str, canonical: str
    ) -> None:
        found = object_location(uri, environment={})
        assert (found.bucket, found.prefix, found.uri) == (bucket, prefix, canonical)

    @pytest.mark.parametrize(
        "uri",
        ["s3://", "s3:/b/x", "s3:///x", "s3://b:9000/x", "abfss://c/x", "ftp://b"],
    )
    def test_a_uri_without_a_bucket_is_refused_with_the_right_form(self, uri: str) -> None:
        with pytest.raises(ConfigError, match=r"s3://bucket/prefix"):
            object_location(uri, environment={})

    def test_the_account_of_azure_is_in_the_uri(self) -> None:
        found = object_location("abfss://c@acc.dfs.core.windows.net", environment={})
        assert found.config["azure_storage_account_name"] == "acc"


class TestOptions:
    def test_the_usual_variables_are_enough(self) -> None:
        found = object_location("s3://b/p", environment=_SET)
        assert found.endpoint == "http://localhost:9000"
        assert found.client == {"allow_http": "true"}
        assert found.open() is not None

    def test_http_is_allowed_for_an_endpoint_that_says_so_alone(self) -> None:
        found = object_location("s3://b", environment={"AWS_ENDPOINT_URL": "https://store"})
        assert found.client == {}

    def test_an_option_goes_before_every_variable_also_with_another_spelling(self) -> None:
        environment = {**_SET, "AWS_ENDPOINT_URL_S3": "http://other"}
        options = {"fs.s3a.endpoint": "minio:9000", "FS.S3A.ACCESS.KEY": "you", "region": "x"}
        found = object_location("s3://b", options, environment=environment)
        assert found.endpoint == "https://minio:9000"
        assert found.config["aws_access_key_id"] == "you"
        assert found.config["aws_secret_access_key"] == "hidden"
        assert found.config["aws_region"] == "x"
        assert found.open() is not None

    def test_the_variable_of_the_service_goes_before_that_of_all_services(self) -> None:
        environment = {"AWS_ENDPOINT_URL_S3": "http://s3", "AWS_ENDPOINT_URL": "http://all"}
        assert object_location("s3://b", environment=environment).endpoint == "http://s3"

    def test_an_emulator_of_google_needs_its_variable_alone(self) -> None:
        found = object_location("gs://b", environment={"STORAGE_EMULATOR_HOST": "localhost:4443"})
        assert found.endpoint == "http://localhost:4443"
        assert found.config["google_skip_signature"] == "true"

    def test_azure_takes_its_names_with_and_without_prefix(self) -> None:
        environment = {"AZURE_STORAGE_ACCOUNT_KEY": "a2V5", "AZURE_STORAGE_ENDPOINT": "http://h/a"}
        uri = "abfss://c@acc.dfs.core.windows.net"
        found = object_location(uri, {"account_key": "b3RoZXI="}, environment=environment)
        assert found.config["azure_storage_account_key"] == "b3RoZXI="
        assert found.endpoint == "http://h/a"
        assert found.open() is not None

    def test_options_of_other_stores_are_left_to_them(self) -> None:
        found = object_location("s3://b", {"google_base_url": "http://g"}, environment={})
        assert found.config == {}

    def test_an_unknown_option_is_named(self) -> None:
        location = object_location("s3://b", {"aws_acces_key": "x"}, environment={})
        with pytest.raises(ConfigError, match=r"aws_acces_key"):
            location.open()

    def test_secrets_are_in_no_text_and_travel_to_tasks(self) -> None:
        found = object_location("s3://b", environment=_SET)
        assert "hidden" not in repr(found)
        assert pickle.loads(pickle.dumps(found)) == found

    @pytest.mark.parametrize(
        ("name", "belongs"),
        [("fs.s3a.access.key", True), ("AWS_REGION", True), ("path", False), ("topic", False)],
    )
    def test_options_of_stores_are_known_by_their_names(self, name: str, belongs: bool) -> None:
        assert is_storage_option(name) is belongs


def test_settings_of_hadoop_in_a_session_count_if_they_have_a_meaning_here() -> None:
    """As a user of Spark's S3A has set them; others stay Hadoop's."""
    found = hadoop_storage_options(
        {
            "spark.hadoop.fs.s3a.access.key": "id",
            "spark.hadoop.fs.s3a.endpoint": "http://minio:9000",
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.azure.account.key.a.dfs.core.windows.net": "key",
            "spark.sql.shuffle.partitions": "4",
        }
    )
    at = object_location("s3a://bucket/p", found, environment={"AWS_ACCESS_KEY_ID": "other"})
    assert at.config["aws_access_key_id"] == "id"
    assert at.endpoint == "http://minio:9000"
    azure = object_location("abfss://c@a.dfs.core.windows.net/p", found, environment={})
    assert azure.config["azure_storage_account_key"] == "key"
