# SPDX-License-Identifier: Apache-2.0
"""Metrics and health by HTTP: the format to the letter, figures that follow
what happens, and peers that are slow, greedy or malformed."""
import os
import pathlib
import re
import signal
import socket

import pytest

import engramd
from engramd import DEADLINE, until
from test_gather import COUNTS, Probe, open_ring, ring_file

TCP = {"listen": "127.0.0.1:0"}
HEAD_BYTES = 16384
CONNECTIONS = 64
ROOT = pathlib.Path(__file__).resolve().parents[2]


# ---- a strict reader of the text format ----

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (\S+)")
NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")
UNESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


def parse(text):
    """{name: {labels: value}}, and {name: type}."""
    assert text.endswith("\n")
    samples, types, current, helped = {}, {}, None, None
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            name, what = line[7:].split(" ", 1)
            assert name not in types and what
            assert not re.search(r"\\[^\\n]", what)
            helped = name
        elif line.startswith("# TYPE "):
            current, kind = line[7:].split(" ")
            assert current == helped and current not in types
            assert kind in ("counter", "gauge")
            assert (kind == "counter") == current.endswith("_total")
            assert re.fullmatch(r"engram_[a-z_]+", current)
            types[current] = kind
            samples[current] = {}
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            name, labels, value = match[1], match[2] or "", match.groups()[-1]
            assert name == current, f"{line}: not in its family"
            assert NUMBER.fullmatch(value), line
            pairs = re.findall(LABEL, labels)
            assert len({key for key, _ in pairs}) == len(pairs), line
            key = tuple(sorted((k, re.sub(r"\\.", lambda m: UNESCAPED[m[0]],
                                          v)) for k, v in pairs))
            assert key not in samples[name], f"{line}: twice"
            samples[name][key] = float(value)
    return samples, types


# ---- asking ----

def address(server):
    with server.connection() as client:
        client.greet()
        host, port = client.call("status")["metrics"]["listen"].rsplit(":", 1)
    return host.strip("[]"), int(port)


def connect(where):
    if isinstance(where, tuple):
        return socket.create_connection(where, DEADLINE)
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(DEADLINE)
    sock.connect(str(where))
    return sock


def read_all(sock):
    got = b""
    while chunk := sock.recv(65536):
        got += chunk
    return got


def split(answer):
    """Code, fields, body; everything as RFC 9112 wants it."""
    head, body = answer.split(b"\r\n\r\n", 1)
    line, *fields = head.decode("ascii").split("\r\n")
    assert "\n" not in head.decode().replace("\r\n", "")
    version, code, _ = line.split(" ", 2)
    assert version == "HTTP/1.1"
    fields = dict(field.split(": ", 1) for field in fields)
    assert fields["Connection"] == "close"
    return int(code), fields, body


def ask(where, request):
    with connect(where) as sock:
        sock.sendall(request)
        return split(read_all(sock))


def live(where):
    """False while there are as many connections as there may be."""
    try:
        return get(where, "/healthz")[0] == 200
    except (AssertionError, ConnectionError, ValueError):
        return False


def get(where, path, method="GET"):
    code, fields, body = ask(
        where, f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    if method != "HEAD":
        assert len(body) == int(fields["Content-Length"])
    return code, fields, body.decode()


def scrape(where):
    code, fields, body = get(where, "/metrics")
    assert code == 200
    assert fields["Content-Type"] == \
        "text/plain; version=0.0.4; charset=utf-8"
    return parse(body)[0]


def value(samples, name, **labels):
    return samples[name][tuple(sorted(labels.items()))]


@pytest.fixture
def server(make, checkpoint):
    return make([{"name": "demo", "checkpoint": str(checkpoint)}],
                metrics=TCP, gather={"threads": 2})


@pytest.fixture
def where(server):
    return address(server)


@pytest.fixture
def ready(server, where):
    until(lambda: get(where, "/readyz")[0] == 200, "ready")
    return where


# ---- figures ----

def test_off(sidecar):
    with sidecar.connection() as client:
        client.greet()
        assert client.call("status")["metrics"] is None


def test_families(server, ready):
    samples, types = parse(get(ready, "/metrics")[2])
    assert value(samples, "engram_build_info", version="0.1.0",
                 instance=server.instance) == 1
    assert value(samples, "engram_ready") == 1
    client = server.client()
    table = client.table("demo")
    assert value(samples, "engram_table_bytes", table="demo") == \
        table["bytes"]
    for layer in table["layers"]:
        labels = {"table": "demo", "layer": str(layer["layer_id"])}
        assert value(samples, "engram_table_layer_rows", **labels) == \
            layer["rows"]
        assert value(samples, "engram_table_layer_bytes", **labels) == \
            layer["bytes"]
    states = {dict(key)["state"]: n for key, n in
              samples["engram_table_state"].items()}
    assert states.pop("ready") == 1 and set(states.values()) == {0}
    # as many families as kinds of figures; none vanishes unnoticed
    assert len(types) >= 40
    methods = {m["name"] for m in client.call("rpc.discover")["methods"]}
    assert {dict(key)["method"] for key in
            samples["engram_rpc_requests_total"]} == methods | {"unknown"}


def test_labels_are_escaped(make, checkpoint):
    """A table's name can hold nothing of the kind, so: the parser and the
    escapes of the exposition agree on what it can hold."""
    name = "a-b_c.d"
    server = make([{"name": name, "checkpoint": str(checkpoint),
                    "load": "on_demand"}], metrics=TCP)
    samples = scrape(address(server))
    assert value(samples, "engram_table_leases", table=name) == 0


def test_loads_are_counted(make, model, seeds):
    server = make([{"name": "demo", "checkpoint": str(model)}], metrics=TCP)
    where, client = address(server), server.client()
    until(lambda: get(where, "/readyz")[0] == 200, "ready")
    before = scrape(where)
    assert value(before, "engram_table_loads_total", table="demo") == 1
    assert value(before, "engram_jobs_total", kind="load", result="done") == 1
    table = client.table("demo")
    records = value(before, "engram_load_read_bytes_total")
    assert 0 < records <= table["bytes"]
    assert value(before, "engram_verified_bytes_total") == records
    engramd.replace(model, seeds[1])
    job = client.finish(client.call("reload", table="demo")["job"])
    assert job["state"] == "done"
    after = scrape(where)
    assert value(after, "engram_table_loads_total", table="demo") == 2
    assert value(after, "engram_jobs_total", kind="reload",
                 result="done") == 1
    assert value(after, "engram_table_generation", table="demo") == \
        job["generation"]
    assert value(after, "engram_load_read_bytes_total") == 2 * records
    assert value(after, "engram_job_seconds_total", kind="reload") > 0
    for file in model.glob("*.safetensors"):
        file.unlink()
    job = client.finish(client.call("reload", table="demo",
                                    force=True)["job"])
    assert job["state"] == "failed"
    last = scrape(where)
    assert value(last, "engram_table_load_failures_total", table="demo") == 1
    assert value(last, "engram_jobs_total", kind="reload",
                 result="failed") == 1
    assert get(where, "/readyz")[0] == 200  # the one before is lent


def test_adoption_is_counted(make, checkpoint):
    server = make([{"name": "demo", "checkpoint": str(checkpoint)}],
                  metrics=TCP)
    until(lambda: get(address(server), "/readyz")[0] == 200, "ready")
    assert value(scrape(address(server)), "engram_adoptions_total") == 0
    server.kill()
    server.start()
    where = address(server)
    until(lambda: get(where, "/readyz")[0] == 200, "ready")
    samples = scrape(where)
    assert value(samples, "engram_adoptions_total") == 1
    assert value(samples, "engram_table_adopted", table="demo") == 1
    assert samples["engram_table_load_seconds"] == {}


def test_requests_are_counted(server, where):
    client = server.client()
    before = scrape(where)
    for _ in range(5):
        client.call("ping")
    for method, params in (("attach", {"table": "none"}),
                           ("attach", {"tabel": "demo"}), ("pnig", {})):
        with pytest.raises(engramd.RpcError):
            client.call(method, **params)
    client.send(b"[]\n")
    assert client.read()["error"]["data"]["name"] == "ProtocolError"
    after = scrape(where)

    def more(method):
        return value(after, "engram_rpc_requests_total", method=method) - \
            value(before, "engram_rpc_requests_total", method=method)

    assert more("ping") == 5 and more("attach") == 2 and more("unknown") == 2
    assert after["engram_rpc_errors_total"] == {
        (("error", error), ("method", method)): 1 for method, error in
        (("attach", "NotFound"), ("attach", "InvalidArgument"),
         ("unknown", "Unsupported"), ("unknown", "ProtocolError"))}


def test_gathering_is_counted(server, ready):
    one = Probe(server)
    with server.connection() as client:
        client.greet()
        samples = scrape(ready)
        assert value(samples, "engram_gather_rings") == 1
        assert value(samples, "engram_gather_threads") == 2
        assert value(samples, "engram_table_leases", table="demo") == 1
    got = one.do("lookup", 10, 1)
    until(lambda: value(scrape(ready), "engram_gather_rows_total") ==
          got["gathered"], "counted")
    samples = scrape(ready)
    assert value(samples, "engram_gather_batches_total") == 2
    assert value(samples, "engram_gather_pending_batches") == 0
    assert len(samples["engram_gather_thread_cpu_seconds_total"]) == 2
    assert sum(samples["engram_gather_thread_cpu_seconds_total"].values()) > 0
    one.end()
    until(lambda: value(scrape(ready), "engram_gather_rings") == 0, "closed")
    assert value(scrape(ready), "engram_gather_rows_total") == got["gathered"]


def attach_ring(server, said=(), choices=()):
    """A client that has opened a ring, and what it says in it."""
    client = server.client()
    lease = client.call("attach", table="demo")["lease"]
    client.close_fds()
    fd = ring_file()
    try:
        os.pwrite(fd, b"".join(n.to_bytes(8, "little")
                                       for n in said), COUNTS)
        os.pwrite(fd, b"".join(
            n.to_bytes(4, "little") for choice in choices for n in choice),
            COUNTS + 64)
        open_ring(client, fd, lease=lease)
    finally:
        os.close(fd)
    return client


CLIENT = ("fallback_rows", "failed_rows", "cache_lookup_rows",
          "cache_hit_rows", "repeated_rows", "cache_fill_rows")


def said(samples):
    return tuple(value(samples, f"engram_client_{name}_total")
                 for name in CLIENT)


def test_what_clients_say_stays_counted(server, ready):
    """A counter does not fall when a ring is closed."""
    one = attach_ring(server, (7, 1, 100, 60, 5, 30))
    assert said(scrape(ready)) == (7, 1, 100, 60, 5, 30)
    two = attach_ring(server, (1, 1, 1, 1, 1, 1))
    assert said(scrape(ready)) == (8, 2, 101, 61, 6, 31)
    one.close()
    until(lambda: value(scrape(ready), "engram_gather_rings") == 1, "closed")
    assert said(scrape(ready)) == (8, 2, 101, 61, 6, 31)
    two.close()
    until(lambda: value(scrape(ready), "engram_gather_rings") == 0, "closed")
    assert said(scrape(ready)) == (8, 2, 101, 61, 6, 31)


def test_choices(server, ready):
    attach_ring(server, choices=[(768, 1, 0, 31000, 54000, 0),
                                 (6144, 2, 0, 0, 108000, 108500)])
    found = {(dict(key)["rows"], dict(key)["path"]): n for key, n in
             scrape(ready)["engram_client_lookup_seconds"].items()}
    assert found == {("768", "uva"): 31e-6, ("768", "host"): 54e-6,
                     ("6144", "host"): 108e-6, ("6144", "hybrid"): 108.5e-6}


def test_client_that_lies_spoils_no_scrape(server, ready):
    """Whatever is in a ring: a sample that came twice would cost all."""
    attach_ring(server, (2**64 - 1, 2**63, 0, 1),
                [(5, 99, 1, 1, 1, 1)] * 8 + [(2**32 - 1,) * 6] * 8)
    assert len(scrape(ready)["engram_client_lookup_seconds"]) == 3


# ---- health ----

def test_ready_says_why_not(make, tmp_path, checkpoint):
    server = make([{"name": "demo", "checkpoint": str(checkpoint)},
                   {"name": "gone", "checkpoint": str(tmp_path / "no")}],
                  metrics=TCP)
    where = address(server)
    until(lambda: '"gone" is failed' in get(where, "/readyz")[2], "it fails")
    code, _, body = get(where, "/readyz")
    assert code == 503 and str(tmp_path / "no") in body
    assert value(scrape(where), "engram_ready") == 0
    assert get(where, "/healthz")[0] == 200


def test_on_demand_counts_not(make, checkpoint):
    server = make([{"name": "demo", "checkpoint": str(checkpoint),
                    "load": "on_demand"}], metrics=TCP)
    where, client = address(server), server.client()
    assert get(where, "/readyz")[::2] == (200, "ready\n")
    client.load("demo")
    assert get(where, "/readyz")[0] == 200


def test_draining_is_not_ready(server, ready):
    client = server.client()
    client.call("attach", table="demo")
    job = client.call("unload", table="demo")["job"]
    code, _, body = get(ready, "/readyz")
    assert (code, body) == (503, 'table "demo" is draining\n')
    client.call("job.cancel", job=job)
    until(lambda: get(ready, "/readyz")[0] == 200, "ready again")


# ---- requests ----

@pytest.mark.parametrize("path, code", [
    ("/", 404), ("/metric", 404), ("/metrics/", 404), ("/healthz?x=1", 200),
    ("/../metrics", 404), ("*", 404), ("/" + "a" * 5000, 404),
    ("/%6detrics", 200), ("/healthz#x", 404)])
def test_paths(where, path, code):
    assert get(where, path)[0] == code


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS",
                                    "TRACE", "get", "CONNECT"])
def test_methods(where, method):
    code, fields, _ = get(where, "/metrics", method)
    assert code == 405 and fields["Allow"] == "GET, HEAD"


def test_head(where):
    code, fields, body = get(where, "/healthz", "HEAD")
    assert (code, fields["Content-Length"], body) == (200, "5", "")


@pytest.mark.parametrize("request_", [
    b"GET /healthz HTTP/1.0\r\n\r\n",
    b"GET /healthz HTTP/1.1\nHost: x\n\n",
    b"\r\n\r\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
    b"GET /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nabc\r\n0\r\n\r\n"])
def test_sound(where, request_):
    assert ask(where, request_)[::2] == (200, b"live\n")


@pytest.mark.parametrize("request_", [
    b"GET /healthz HTTP/2.0\r\nHost: x\r\n\r\n",
    b"GET /healthz\r\n\r\n",
    b"GET  HTTP/1.1\r\n\r\n",
    b" /healthz HTTP/1.1\r\n\r\n",
    b"GET /\0 HTTP/1.1\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\n",
    b'{"jsonrpc":"2.0","id":1,"method":"shutdown"}\n',
    b"GET /healthz HTTP/1.1\r\nno field\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: x\r\nA: " + b"x" * HEAD_BYTES,
    b"GET /healthz HTTP/1.1\r\n" + b"A: x\r\n" * 4000 + b"\r\n",
    b"G" * 100000,
    b"POST /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"what",
    os.urandom(4096)])
def test_garbage(server, where, request_):
    """It ends by itself, not with an answer; nobody else notices."""
    with connect(where) as sock:
        try:
            sock.sendall(request_)
            answer = read_all(sock)
        except ConnectionError:
            answer = b""  # more was sent than is read
        assert not answer.startswith(b"HTTP/1.1 2")
    server.ping()
    assert get(where, "/healthz")[0] == 200


def test_in_small_pieces(where):
    with connect(where) as sock:
        for byte in b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n":
            sock.sendall(bytes([byte]))
        assert split(read_all(sock))[0] == 200


def test_half_closed(where):
    """Who has asked may shut its side; who has not gets nothing."""
    with connect(where) as sock:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        sock.shutdown(socket.SHUT_WR)
        assert split(read_all(sock))[0] == 200
    with connect(where) as sock:
        sock.sendall(b"GET /healthz HTTP/1.1\r\n")
        sock.shutdown(socket.SHUT_WR)
        assert read_all(sock) == b""


def test_who_does_not_ask_is_closed(where):
    """Nobody waits for it meanwhile."""
    with connect(where) as silent, connect(where) as slow:
        slow.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert get(where, "/healthz")[0] == 200
        assert read_all(slow) == read_all(silent) == b""


@pytest.mark.parametrize("begin, piece", [
    (b"GET /metrics HTTP/1.1\r\n", b"A: x\r\n"),
    (b"POST /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
     b"1\r\nx\r\n")])
def test_who_never_ends_is_closed(where, begin, piece):
    """Though it is never silent for long."""
    with connect(where) as endless:
        endless.sendall(begin)
        endless.settimeout(1)
        for _ in range(int(DEADLINE)):
            try:
                endless.sendall(piece)
                assert endless.recv(4096) == b""
                break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            raise AssertionError("it is never closed")
    assert get(where, "/healthz")[0] == 200


def test_who_does_not_read_holds_up_nobody(server, where):
    """Not even with all the connections that there may be."""
    deaf = []
    try:
        for _ in range(CONNECTIONS):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            sock.connect(where)
            sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            deaf.append(sock)
        server.ping()
        until(lambda: live(where), "a probe is answered")
        assert scrape(where)
    finally:
        for sock in deaf:
            sock.close()


def test_200_connections(make):
    """Of idle ones descriptors are bounded, and they end by themselves: no
    scrape is kept out for longer."""
    server = make(metrics=TCP)  # and no load that opens files
    where = address(server)
    until(lambda: server.connections() == 0, "who asked where has gone")
    before = server.fd_count()
    idle = [connect(where) for _ in range(200)]
    try:
        for _ in range(10):
            server.ping()
            assert server.fd_count() <= before + CONNECTIONS + 1
        until(lambda: live(where), "a probe is answered")
        assert scrape(where)
        for sock in idle:
            assert read_all(sock) == b""
        until(lambda: server.fd_count() <= before, "all are closed")
    finally:
        for sock in idle:
            sock.close()


def test_scrapes_at_once(where):
    """As many as there may be connections, time and again."""
    for _ in range(4):
        asking = []
        for _ in range(CONNECTIONS):
            asking.append(connect(where))
            asking[-1].sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        for sock in asking:
            code, fields, body = split(read_all(sock))
            assert code == 200 and len(body) == int(fields["Content-Length"])
            sock.close()


def test_answers_while_a_table_loads(make, big_checkpoint):
    server = make([{"name": "big", "checkpoint": str(big_checkpoint)}],
                  loader={"bytes_per_second": 1 << 20}, metrics=TCP)
    where = address(server)
    progress = until(
        lambda: (samples := scrape(where))["engram_table_job_bytes"] and
        samples["engram_table_job_done_bytes"] and samples, "it loads")
    (labels, total), = progress["engram_table_job_bytes"].items()
    assert dict(labels)["kind"] == "load" and total > 0
    assert 0 <= progress["engram_table_job_done_bytes"][labels] <= total
    assert get(where, "/readyz")[::2] == (503, 'table "big" is loading\n')


# ---- where it listens ----

def test_unix_socket(make):
    path = pathlib.Path(f"/tmp/engramd-metrics-{os.getpid()}/m")
    server = make(metrics={"path": str(path)},
                  socket={"mode": "0600"})
    assert path.stat().st_mode & 0o777 == 0o600
    assert get(path, "/healthz")[0] == 200
    assert value(scrape(path), "engram_connections") == 0
    server.stop()
    assert not path.exists()
    path.parent.rmdir()
    server.process = None


def test_ipv6(make):
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    server = make(metrics={"listen": "[::1]:0"})
    assert get(address(server), "/healthz")[0] == 200


def failure(server):
    server.start(wait=False)
    assert server.wait() == 1
    server.expect = 1
    line = next(line for line in server.log().splitlines()
                if "start failed" in line)
    assert server.names() == [] and not server.socket.exists()
    return line


def test_port_in_use(make):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        listen = f"127.0.0.1:{other.getsockname()[1]}"
        line = failure(make(start=False, metrics={"listen": listen}))
    assert f"listen on {listen}: Address already in use" in line
    assert "metrics.listen" in line and "stop what listens there" in line


def test_address_of_another_machine(make):
    line = failure(make(start=False, metrics={"listen": "192.0.2.1:9464"}))
    assert "Cannot assign requested address" in line
    assert "give an address of this machine" in line


def test_path_in_use(make, tmp_path):
    path = tmp_path / "m"
    path.write_text("")
    line = failure(make(start=False, metrics={"path": str(path)}))
    assert "is no socket" in line and "metrics.path" in line
    assert path.exists()


def test_restart_takes_the_port_again(server, where):
    """While connections of the former one linger."""
    lingering = connect(where)
    lingering.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    read_all(lingering)
    server.kill()
    server.config["metrics"] = {"listen": f"{where[0]}:{where[1]}"}
    server.write_config()
    server.start()
    assert get(where, "/healthz")[0] == 200
    lingering.close()


def test_not_changed_while_it_runs(server, where):
    server.config["metrics"] = {"listen": "127.0.0.1:1"}
    server.write_config()
    client = server.client()
    with pytest.raises(engramd.RpcError) as caught:
        client.call("config.reload")
    assert caught.value.data["path"] == "metrics"
    server.signal(signal.SIGHUP)
    assert get(where, "/healthz")[0] == 200


# ---- what is given with it ----

def test_alerts_name_what_there_is(server, ready):
    text = (ROOT / "config/prometheus/alerts.yml").read_text()
    named = set(re.findall(r"\bengram_\w+", text))
    assert named and named <= set(parse(get(ready, "/metrics")[2])[1])


def test_manual_speaks_of_what_there_is(where):
    text = (ROOT / "config/man/engramd.8").read_text()
    for path in re.findall(r"^\.It Pa (/\w+)$", text, re.MULTILINE):
        if path in ("/metrics", "/healthz", "/readyz"):
            assert get(where, path)[0] in (200, 503)
    assert text.count(".It Pa /readyz") == 1
