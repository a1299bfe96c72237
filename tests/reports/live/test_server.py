# SPDX-License-Identifier: Apache-2.0
"""The page of this computer: who it answers, with what, and that it ends."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator

import pytest

from microc.errors import UsageError
from microc.reports.live import HOST, MAX_EVENT_STREAMS, PageServer


@pytest.fixture
def server() -> Iterator[PageServer]:
    with PageServer("<p>hello \u00e9</p>") as running:
        yield running


def ask(server: PageServer, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(HOST, server.server_port, timeout=10)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    found = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    connection.close()
    return found


def test_the_page_has_an_address_that_nobody_guesses(server: PageServer) -> None:
    status, headers, body = ask(server, f"/{server.word}/")
    assert status == 200 and body.decode() == "<p>hello \u00e9</p>" and len(server.word) >= 20
    assert "default-src 'none'" in headers["content-security-policy"] and headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff" and headers["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in headers and "Python" not in headers["server"]
    others = (
        "/",
        "/events",
        f"/{server.word}",
        f"/{server.word}/x",
        f"/{server.word[:-1]}/",
        f"/{server.word}/../etc",
        "//",
        "/%00/",
    )
    assert {ask(server, path)[0] for path in others} == {404}
    with PageServer("") as other:
        assert other.word != server.word


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", ""])
def test_other_names_lead_nowhere(server: PageServer, host: str) -> None:
    """A page whose name was made to mean this computer (DNS rebinding) is not answered, even if it knew the word."""
    for path in (f"/{server.word}/", f"/{server.word}/events"):
        assert ask(server, path, Host=host.format(port=server.server_port))[0] == 403
    assert ask(server, f"/{server.word}/", Host=f"localhost:{server.server_port}")[0] == 200


def test_nothing_but_reading(server: PageServer) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "HEAD"):
        assert ask(server, f"/{server.word}/", method)[0] == 501


def test_only_this_computer_is_listened_to(server: PageServer) -> None:
    assert server.server_address[0] == HOST and server.socket.family == socket.AF_INET


def test_events(server: PageServer) -> None:
    """The last one at once, then each that is new; in order, whole."""
    server.publish({"run": 0})
    server.publish({"run": 1, "name": "a\nb\r\n\ndata: x"})
    connection = http.client.HTTPConnection(HOST, server.server_port, timeout=10)
    connection.request("GET", f"/{server.word}/events")
    answer = connection.getresponse()
    assert answer.status == 200 and answer.getheader("Content-Type") == "text/event-stream"
    first = answer.readline().decode()
    assert json.loads(first.removeprefix("data: ")) == {"run": 1, "name": "a\nb\r\n\ndata: x"}
    assert answer.readline() == b"\n"
    server.publish({"run": 2})
    assert json.loads(answer.readline().decode().removeprefix("data: ")) == {"run": 2}
    connection.close()


def test_too_many_browsers(server: PageServer) -> None:
    held = []
    for _ in range(MAX_EVENT_STREAMS):
        connection = http.client.HTTPConnection(HOST, server.server_port, timeout=10)
        connection.request("GET", f"/{server.word}/events")
        assert connection.getresponse().status == 200
        held.append(connection)
    assert ask(server, f"/{server.word}/events")[0] == 503
    assert ask(server, f"/{server.word}/")[0] == 200
    for connection in held:
        connection.close()


def test_it_ends_while_browsers_look() -> None:
    before = threading.active_count()
    with PageServer("x") as running:
        connection = http.client.HTTPConnection(HOST, running.server_port, timeout=10)
        connection.request("GET", f"/{running.word}/events")
        answer = connection.getresponse()
    assert answer.read() in (b"", b": still here\n\n")
    connection.close()
    assert threading.active_count() <= before + 1


def test_strange_requests_do_no_harm(server: PageServer) -> None:
    for data in (
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
    ):
        with socket.create_connection((HOST, server.server_port), timeout=5) as line:
            line.sendall(data)
            line.shutdown(socket.SHUT_WR)
            while line.recv(4096):
                pass
    assert ask(server, f"/{server.word}/")[0] == 200


def test_a_port_that_is_taken() -> None:
    with PageServer("x") as first, pytest.raises(UsageError, match=f"port {first.server_port}"):
        PageServer("y", first.server_port)
