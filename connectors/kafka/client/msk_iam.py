"""Log-in at Amazon MSK by IAM: tokens of AWS's signer library, and Java's settings for them.

The Java client logs in by a mechanism of its own, ``AWS_MSK_IAM``. MSK offers the same permissions
by OAUTHBEARER at the same port, with a signed URL as the token.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from sluice.connectors.kafka.client.credentials import OAuthToken
from sluice.runtime.errors import AuthenticationError, ConfigError, UnreachableError
from sluice.runtime.extras import extras_named

__all__ = ["MSK_HANDLER", "MSK_IAM", "REGION", "MskIamToken", "region_of"]

MSK_IAM = "AWS_MSK_IAM"
"""The mechanism's name in settings of the Java client."""

MSK_HANDLER = ".IAMOAuthBearerLoginCallbackHandler"
"""End of the Java class that signs such tokens for the mechanism OAUTHBEARER."""

REGION = "sasl.aws.region"
"""Our option: the region of a cluster whose addresses do not show it."""

_ADDRESS = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?:\d+$")
_REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
_SESSION_NAME = "sluice"
_THROTTLED = {"Throttling", "ThrottlingException", "RequestLimitExceeded"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MskIamToken:
    """Signs a token with the AWS credentials that this process finds: in environment variables, in
    files, or from the role of its machine or pod.

    Driver and executors. A token is valid for 15 minutes.

    Attributes:
        region: of the cluster.
        profile: of the AWS configuration file, or "".
        role_arn, session_name: a role to assume, or "".
    """

    region: str
    profile: str = ""
    role_arn: str = ""
    session_name: str = _SESSION_NAME

    @classmethod
    def of(
        cls,
        jaas: Mapping[str, str],
        servers: Sequence[str],
        *,
        region: str,
        environment: Mapping[str, str],
    ) -> Self:
        """Take the settings of Java's ``IAMLoginModule``.

        Args:
            region: as given, or "".
        Raises:
            ConfigError: the region is unknown, or a setting has no counterpart.
        """
        if unknown := sorted(set(jaas) - set(_JAAS)):
            raise ConfigError(
                "a setting of IAMLoginModule is not available",
                {"option": "kafka.sasl.jaas.config", "setting": ",".join(unknown)},
                f"Use {', '.join(_JAAS)}, or AWS's environment variables.",
            )
        if "awsRoleArn" in jaas and "awsProfileName" in jaas:
            raise ConfigError(
                "an AWS role and an AWS profile are given",
                {"option": "kafka.sasl.jaas.config"},
                "Remove one of awsRoleArn and awsProfileName.",
            )
        return cls(
            region=region_of(servers, region, environment),
            profile=jaas.get("awsProfileName", ""),
            role_arn=jaas.get("awsRoleArn", ""),
            session_name=jaas.get("awsRoleSessionName", _SESSION_NAME),
        )

    def __call__(self) -> OAuthToken:
        """Sign one.

        Raises:
            MissingRequirementError: the signer library is not installed.
            AuthenticationError: there are no credentials, or AWS refuses them.
            UnreachableError: the service that gives credentials does not answer.
        """
        with extras_named():  # only processes that log in so pay for the imports
            from aws_msk_iam_sasl_signer import MSKAuthTokenProvider as signer
        import botocore.exceptions as aws

        try:
            found = signer.generate_auth_token_from_credentials_provider(
                self.region, self._credentials()
            )
        except (
            aws.ConnectionError,
            aws.HTTPClientError,
            aws.CredentialRetrievalError,
            aws.MetadataRetrievalError,
        ) as err:
            raise UnreachableError(
                "AWS gives no credentials at the moment",
                {"region": self.region, "cause": type(err).__name__},
                "Check that this host can reach AWS STS or its instance metadata.",
            ) from None
        except aws.ClientError as err:
            error = err.response.get("Error", {}).get("Code", "")
            where = {"region": self.region, "role": self.role_arn, "code": error}
            status = err.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400)
            if status >= 500 or error in _THROTTLED:
                raise UnreachableError("AWS STS failed", where, "Wait: Sluice retries.") from None
            raise AuthenticationError(
                "AWS refuses the role", where, "Allow sts:AssumeRole for these credentials."
            ) from None
        except (aws.BotoCoreError, AttributeError, ValueError) as err:
            # The signer library reads attributes of None if there are no credentials.
            raise AuthenticationError(
                "no AWS credentials were found",
                {"region": self.region, "profile": self.profile, "cause": type(err).__name__},
                "Give this process credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a "
                "profile, or a role of its machine or pod.",
            ) from None
        value, expires_ms = found
        return OAuthToken(value=value, expires_at_s=expires_ms / 1000, principal=_SESSION_NAME)

    def _credentials(self) -> object:
        """A provider of the credentials that sign, as the signer library takes them.

        Requests to STS go to the region of AWS's configuration, else to the cluster's. The signer
        library itself fails if that configuration has no region.
        """
        from botocore.credentials import CredentialProvider, Credentials
        from botocore.session import Session

        session = Session(profile=self.profile or None)
        if not session.get_config_variable("region"):
            session.set_config_variable("region", self.region)
        found = session.get_credentials()
        if self.role_arn:
            answer = session.create_client("sts").assume_role(
                RoleArn=self.role_arn, RoleSessionName=self.session_name
            )
            names = ("AccessKeyId", "SecretAccessKey", "SessionToken")
            found = Credentials(*(answer["Credentials"][name] for name in names))

        class Found(CredentialProvider):  # type: ignore[misc]  # botocore has no types
            def load(self) -> object:
                return found

        return Found()


_JAAS = ("awsProfileName", "awsRoleArn", "awsRoleSessionName", "awsDebugCreds")


def region_of(servers: Sequence[str], given: str, environment: Mapping[str, str]) -> str:
    """The region of a cluster: as given, from its addresses, or from AWS's variables; pure.

    Raises:
        ConfigError: none of them names it.
    """
    in_addresses = (found[1] for found in map(_ADDRESS.search, servers) if found)
    region = given or next(in_addresses, "")
    region = region or next((v for n in _REGION_VARIABLES if (v := environment.get(n, ""))), "")
    if not region:
        raise ConfigError(
            "the AWS region of the cluster is not known",
            {"kafka.bootstrap.servers": ",".join(servers)},
            f"Set kafka.{REGION}, or the environment variable AWS_REGION.",
        )
    return region
