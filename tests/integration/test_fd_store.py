# SPDX-License-Identifier: Apache-2.0
"""Tables in memfds outlive their engramd in the service manager's store of
descriptors; the service manager is tests/integration/service_manager.py."""
import fcntl
import mmap
import os
import re
import signal
import socket

import pytest

import engramd
from service_manager import Service, ServiceManager

SEALS = (fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW |
         0x10)  # F_SEAL_FUTURE_WRITE


@pytest.fixture
def checkpoint(tmp_path):
    return engramd.synth(tmp_path / "checkpoint")


@pytest.fixture
def managers(tmp_path):
    """Service managers; closed, and with nothing left, when the test ends."""
    made = []

    def factory(**options):
        directory = tmp_path / f"manager{len(made)}"
        directory.mkdir()
        made.append(ServiceManager(directory, **options))
        return made[-1]

    yield factory
    for manager in made:
        manager.close()


@pytest.fixture
def serve(tmp_path, checkpoint, managers):
    made = []

    def factory(manager=True, load="start", **config):
        if manager is True:
            manager = managers()
        made.append(Service(
            tmp_path, manager, [{"name": "demo", "checkpoint": str(checkpoint),
                                 "load": load}], **config))
        return made[-1]

    yield factory
    engramd.stop_all(made)


def have(service):
    client = service.client()
    return client, client.have("demo")


def said(service, text):
    return [line for line in service.log().splitlines() if text in line]


class Page:
    """The control page, as a client maps it."""

    def __init__(self, client):
        client.call("attach", table="demo")
        self.map = mmap.mmap(client.fds[0], 4096, prot=mmap.PROT_READ)

    def epoch(self):
        return f"{int.from_bytes(self.map[80:88], 'little'):016x}"


@pytest.mark.parametrize("says", [True, False])
@pytest.mark.parametrize("mode", ["verify", "background", "trust"])
def test_killed_and_started(serve, managers, mode, says):
    """Three times: the same memory, generation and content; who has mapped
    the control page sees the next engramd in it."""
    service = serve(managers(says=says), memory={"adopt": mode})
    client, before = have(service)
    page = Page(client)
    old = [os.dup(fd) for fd in client.fds]
    want = [os.pread(fd, os.fstat(fd).st_size, 0) for fd in old[1:]]
    kept = service.inodes()
    assert len(kept) == 3 and not before["adopted"]
    assert page.epoch() == client.hello["boot_epoch"]
    held = []
    for _ in range(3):
        service.kill()
        service.start()
        client, after = have(service)
        assert after["adopted"] and after["loader"] is None
        for same in "generation", "content_id", "bytes":
            assert after[same] == before[same]
        assert service.inodes() == kept
        assert page.epoch() == client.hello["boot_epoch"]
        assert [os.pread(fd, os.fstat(fd).st_size, 0)
                for fd in old[1:]] == want
        client.call("attach", table="demo")
        assert [os.pread(fd, os.fstat(fd).st_size, 0)
                for fd in client.fds[1:]] == want
        held.append(service.fd_count())
    assert held[0] == held[2]
    for fd in old:
        os.close(fd)


def test_loaded_on_demand_before(serve):
    service = serve(load="on_demand")
    service.client().load("demo")
    service.kill()
    service.start()
    client = service.client()
    engramd.until(lambda: client.table("demo")["state"] == "ready", "adopted")
    assert client.table("demo")["adopted"]


def test_shutdown(serve):
    """Without keep nothing stays; with it, everything."""
    service = serve()
    client, before = have(service)
    page = Page(client)
    kept = service.inodes()
    client.call("shutdown", keep=True)
    assert service.wait() == 0
    service.hang_up()
    assert service.inodes() == kept and page.epoch() == "0" * 16
    service.start()
    client, after = have(service)
    assert after["adopted"] and after["generation"] == before["generation"]
    assert page.epoch() == client.hello["boot_epoch"]
    client.call("shutdown")
    assert service.wait() == 0
    assert service.names() == []


def test_unloaded(serve):
    service = serve()
    client, _ = have(service)
    names = service.segments()
    client.finish(client.call("unload", table="demo")["job"])
    assert service.segments() == []
    client.load("demo")
    assert service.segments() == [name.replace(".g1", ".g2") for name in names]
    service.kill()
    service.start()
    client, after = have(service)
    assert (after["adopted"], after["generation"]) == (True, 2)


def test_reloaded(serve, checkpoint):
    """Of two generations the newest is taken over, and the other one goes."""
    service = serve()
    client, _ = have(service)
    client.call("attach", table="demo")
    for path in checkpoint.glob("*.safetensors"):
        os.utime(path)
    job = client.call("reload", table="demo")["job"]
    assert client.finish(job)["state"] == "done"
    assert len(service.segments()) == 4
    service.kill()
    service.start()
    _, after = have(service)
    assert (after["adopted"], after["generation"]) == (True, 2)
    assert len(service.segments()) == 2


# ---- what can not be taken over ----

def memfd(data=b"", seals=None, name="test"):
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, data)
    if seals is not None:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def first_segment(service):
    return service.segments()[0]


def replace(service, name, fd):
    """Another descriptor under that name."""
    store = service.manager.store
    at = next(i for i, (n, _) in enumerate(store) if n == name)
    os.close(store[at][1])
    store[at] = (name, os.dup(fd))
    os.close(fd)


def add(service, name, fd):
    service.manager.put(name, fd)
    os.close(fd)


def bytes_of(service, name):
    fd = service.descriptor(name)
    return os.pread(fd, os.fstat(fd).st_size, 0)


def an_unknown_name(service):
    add(service, "stored", memfd())
    return True


def another_instance(service):
    add(service, "engramd.other.demo.1.g1", memfd(b"x", SEALS))
    return True


def no_memory(service):
    add(service, f"engramd.{service.instance}.other.1.g1",
        os.open(os.devnull, os.O_RDWR))
    return True


def an_old_generation(service):
    name = first_segment(service)
    add(service, name.replace(".g1", ".g0"),
        memfd(bytes_of(service, name), SEALS))
    return True


def a_table_of_nobody(service):
    add(service, f"engramd.{service.instance}.other.1.g1", memfd(b"", SEALS))
    return True


def a_socket(service):
    with socket.socket(socket.AF_UNIX) as sock:
        service.manager.put("engramd.socket", sock.fileno())
    return True


def lose(service, name):
    store = service.manager.store
    os.close(next(fd for n, fd in store if n == name))
    service.manager.store = [(n, fd) for n, fd in store if n != name]


def a_layer_is_missing(service):
    lose(service, first_segment(service))
    return False


def not_sealed(service):
    name = first_segment(service)
    replace(service, name, memfd(bytes_of(service, name)))
    return False


def damaged_header(service):
    name = first_segment(service)
    data = bytearray(bytes_of(service, name))
    data[100] ^= 1
    replace(service, name, memfd(data, SEALS))
    return False


def damaged_records(service):
    name = first_segment(service)
    data = bytearray(bytes_of(service, name))
    data[2 << 20] ^= 1
    replace(service, name, memfd(data, SEALS))
    return False


def cut_short(service):
    name = first_segment(service)
    replace(service, name, memfd(bytes_of(service, name)[:2 << 20], SEALS))
    return False


def named_twice(service):
    """Which of the two is right is not known."""
    name = first_segment(service)
    add(service, name, memfd(bytes_of(service, name), SEALS))
    return False


@pytest.mark.parametrize("change", [
    an_unknown_name, another_instance, no_memory, an_old_generation,
    a_table_of_nobody, a_socket, a_layer_is_missing, not_sealed,
    damaged_header, damaged_records, cut_short, named_twice])
def test_unfit_is_removed(serve, change):
    """From the store; the table is adopted, or loaded, all the same."""
    service = serve()
    have(service)
    names = service.names()
    service.kill()
    still = change(service)
    service.start()
    client, after = have(service)
    assert after["adopted"] is still, service.log()
    assert service.names() == names
    job = client.finish(client.call("verify", table="demo")["job"])
    assert job["state"] == "done"


def control(service):
    return f"engramd.{service.instance}.ctl"


def page_of_another_size(service):
    replace(service, control(service), memfd(bytes(4096)))


def page_of_another_abi(service):
    data = bytearray(bytes_of(service, control(service)))
    data[8] ^= 0x40
    replace(service, control(service), memfd(data))


def page_read_only(service):
    fd = os.open(f"/proc/self/fd/{service.descriptor(control(service))}",
                 os.O_RDONLY)
    replace(service, control(service), fd)


def page_missing(service):
    lose(service, control(service))


@pytest.mark.parametrize("change", [
    page_of_another_size, page_of_another_abi, page_read_only, page_missing])
def test_unfit_control_page(serve, change):
    """A new one takes its place; the table is adopted."""
    service = serve()
    have(service)
    before = service.inodes()
    service.kill()
    change(service)
    service.start()
    _, after = have(service)
    now = service.inodes()
    assert after["adopted"] and now.keys() == before.keys()
    assert {name for name in now if now[name] != before[name]} == (
        set() if change is page_read_only and
        now[control(service)] == before[control(service)]
        else {control(service)})
    page = service.descriptor(control(service))
    flags = fcntl.fcntl(page, fcntl.F_GETFL)
    assert flags & os.O_ACCMODE == os.O_RDWR


@pytest.mark.parametrize("what", ["source", "adopt", "table", "backing"])
def test_changed_meanwhile(serve, checkpoint, what):
    service = serve()
    have(service)
    before = service.inodes()
    service.kill()
    if what == "source":
        path = next(checkpoint.glob("*.safetensors"))
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)
    elif what == "adopt":
        service.config["memory"]["adopt"] = "off"
    elif what == "table":
        service.config["tables"] = []
    elif what == "backing":
        service.config["memory"] = {"backing": "shm"}
    service.write_config()
    service.start(wait=False)
    engramd.until(service.answers, "it answers")
    client = service.client()
    if what != "table":
        assert not client.have("demo")["adopted"]
    names = {"table": [control(service)], "backing": []}.get(
        what, sorted(before))
    assert service.names() == names
    now = service.inodes()
    assert not {now[n] for n in names if n != control(service)} & set(
        before.values())


# ---- without a store ----

def keep_is_refused(service, words):
    with service.connection() as client:
        client.greet()
        with pytest.raises(engramd.RpcError) as caught:
            client.call("shutdown", keep=True)
    assert caught.value.name == "Unsupported"
    assert words in caught.value.message
    assert caught.value.data["path"] == "params.keep"
    service.ping()


def use(service):
    client, _ = have(service)
    client.call("detach", lease=client.call("attach", table="demo")["lease"])
    client.finish(client.call("unload", table="demo")["job"])
    client.load("demo")


def test_nobody_keeps(serve):
    service = serve(manager=None)
    use(service)
    assert len(said(service, "do not outlive")) == 1
    assert "FileDescriptorStoreMax=" in said(service, "do not outlive")[0]
    keep_is_refused(service, "no service manager keeps it")


@pytest.mark.parametrize("limit", [1, 2])
def test_full(serve, managers, limit):
    """It works, says so once, and asks for no more than there is room for."""
    manager = managers(limit=limit)
    service = serve(manager)
    use(service)
    assert len(said(service, "do not outlive")) == 1
    assert "store is full" in said(service, "do not outlive")[0]
    assert manager.refused == [] and len(service.names()) == limit
    keep_is_refused(service, "not kept all")
    service.kill()
    service.start()
    assert not have(service)[1]["adopted"]
    assert len(service.names()) == limit


def test_full_and_not_said(serve, managers):
    """As with systemd before 254: half a table is kept, and loaded anew."""
    manager = managers(limit=2, says=False)
    service = serve(manager)
    use(service)
    assert manager.refused
    keep_is_refused(service, "no service manager keeps it")
    service.kill()
    service.start()
    assert not have(service)[1]["adopted"]


def test_service_manager_goes(serve, managers):
    """While it runs."""
    manager = managers()
    service = serve(manager)
    have(service)
    os.rename(manager.path, manager.path + ".gone")
    use(service)
    assert len(said(service, "do not outlive")) == 1
    service.signal(signal.SIGTERM)
    assert service.wait() == 0
    os.rename(manager.path + ".gone", manager.path)
    manager.clean()


def test_no_answer(serve, managers):
    """A service manager that hangs is waited for once, and not by the
    loop."""
    manager = managers()
    service = serve(manager)
    client, _ = have(service)
    manager.mute = True
    job = client.call("unload", table="demo")["job"]
    for _ in range(3):
        service.ping()
    assert client.call("job.get", job=job)["state"] == "running"
    assert client.finish(job)["state"] == "done"
    client.load("demo")
    client.finish(client.call("unload", table="demo")["job"])
    assert len(said(service, "does not answer")) == 1
    manager.mute = False


def test_told_before_it_ends(serve):
    """The last message is not sent by a process that has gone by the time it
    is read: every removal is waited for."""
    service = serve()
    client, _ = have(service)
    barriers = service.manager.barriers
    client.call("shutdown")
    assert service.wait() == 0
    # by the test itself, too
    assert service.manager.barriers >= barriers + 3


def test_names(serve):
    """Short enough, and without the colon, for any table."""
    service = serve()
    have(service)
    for message in service.manager.messages:
        if "FDSTORE" in message:
            assert message["FDPOLL"] == "0"
            assert re.fullmatch(r"[A-Za-z0-9_.-]{1,255}", message["FDNAME"])


def test_status(serve, managers):
    service = serve(managers(limit=40))
    client, _ = have(service)
    assert client.call("status")["memory"]["fd_store"] == {
        "descriptors": 3, "max": 40}
    other = serve(managers(says=False))
    assert have(other)[0].call("status")["memory"]["fd_store"] == {
        "descriptors": 3, "max": None}
    third = serve(manager=None)
    assert have(third)[0].call("status")["memory"]["fd_store"] is None


def test_unit_has_a_store():
    unit = (engramd.ROOT / "config" / "engramd.service.in").read_text()
    limit = re.search(r"^FileDescriptorStoreMax=(\d+)$", unit, re.M)
    assert int(limit.group(1)) >= 1024
