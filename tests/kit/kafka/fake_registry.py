"""A schema registry in this process, which fails as it is told."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from sluice.connectors.kafka.records.registry.schema_registry import close_clients

__all__ = ["FakeRegistry"]


class FakeRegistry:
    """Answers as Confluent's registry does, as far as Sluice asks it.

    Attributes:
        schemas: body of each schema id; also found by ``guid``.
        subjects: ids of each subject's versions, from 1.
        failures: answers (status, body) that come first, before the right ones.
        paths: of all requests so far.
        url: of the server.
    """

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.failures: list[tuple[int, object]] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.incompatible: str | None = None
        self.url = ""

    def add(self, subject: str, schema: object, **more: object) -> int:
        """Register a schema; its id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        number = next((n for n, s in self.schemas.items() if s["schema"] == text), None)
        if number is None:
            number = 1 + len(self.schemas)
            self.schemas[number] = {"schema": text, "schemaType": "AVRO", **more}
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    @contextmanager
    def served(self) -> Iterator["FakeRegistry"]:
        """Serve on a free port of this machine."""
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                size = int(self.headers.get("Content-Length", 0))
                body = json.loads(self.rfile.read(size) or b"{}")
                fake.paths.append(f"{self.command} {self.path}")
                fake.headers.append({name.lower(): text for name, text in self.headers.items()})
                if fake.failures:
                    status, answer = fake.failures.pop(0)
                else:
                    status, answer = fake.answer(self.command, urlsplit(self.path).path, body)
                text = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = _answer

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield self
        finally:
            close_clients()
            server.shutdown()
            server.server_close()
            thread.join()

    def answer(self, command: str, path: str, body: dict[str, Any]) -> tuple[int, object]:
        """Status and body."""
        match [command, *map(unquote, path.strip("/").split("/"))]:
            case ["GET", "schemas", "types"]:
                return 200, ["AVRO", "JSON", "PROTOBUF"]
            case ["GET", "schemas", "ids", text]:
                return self._schema(self.schemas.get(int(text)))
            case ["GET", "schemas", "guids", guid]:
                found = [s for s in self.schemas.values() if s.get("guid") == guid]
                return self._schema(found[0] if found else None)
            case ["GET", "subjects", subject, "versions", version]:
                ids = self.subjects.get(subject, [])
                place = len(ids) if version == "latest" else int(version)
                if not 0 < place <= len(ids):
                    return 404, {"error_code": 40402 if ids else 40401, "message": "not found"}
                number = ids[place - 1]
                named = {"subject": subject, "version": place, "id": number}
                return 200, {**self.schemas[number], **named}
            case ["POST", "subjects", subject, *versions]:
                if self.incompatible is not None and versions:
                    return 409, {"error_code": 409, "message": self.incompatible}
                kept = {key: body[key] for key in ("schemaType", "references") if body.get(key)}
                known = {self.schemas[n]["schema"]: n for n in self.subjects.get(subject, [])}
                if versions:
                    number = self.add(subject, body["schema"], **kept)
                elif body["schema"] in known:
                    number = known[body["schema"]]
                else:
                    return 404, {"error_code": 40403, "message": "Schema not found"}
                place = 1 + self.subjects[subject].index(number)
                named = {"subject": subject, "version": place, "id": number}
                return 200, {**self.schemas[number], **named}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _schema(self, found: dict[str, Any] | None) -> tuple[int, object]:
        return (
            (200, found) if found else (404, {"error_code": 40403, "message": "Schema not found"})
        )
