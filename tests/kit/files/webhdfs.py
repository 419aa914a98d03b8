"""A file written and read over WebHDFS, as a client without a JVM does it."""

import getpass

import urllib3


def write_file(web_uri: str, path: str, data: bytes) -> None:
    """Create a file; ``path`` is absolute. The NameNode reports which DataNode takes the bytes."""
    url = f"{web_uri}/webhdfs/v1{path}?op=CREATE&user.name={getpass.getuser()}"
    with urllib3.PoolManager(timeout=120.0) as pool:
        sent_on = pool.request("PUT", url, redirect=False)
        assert sent_on.status == 307, sent_on.data
        answer = pool.request("PUT", sent_on.headers["Location"], body=data)
        assert answer.status == 201, answer.data


def read_file(web_uri: str, path: str) -> bytes:
    """The whole file."""
    url = f"{web_uri}/webhdfs/v1{path}?op=OPEN&user.name={getpass.getuser()}"
    with urllib3.PoolManager(timeout=120.0) as pool:
        answer = pool.request("GET", url)
        assert answer.status == 200, answer.data
        return bytes(answer.data)
