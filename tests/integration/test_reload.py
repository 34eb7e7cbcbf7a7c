# SPDX-License-Identifier: Apache-2.0
"""Replacing a table while it is lent."""
import struct

import pytest

import engramd
from engramd import SHAPE, SMALL, RpcError, replace, until


def refused(client, method, **params):
    with pytest.raises(RpcError) as caught:
        client.call(method, **params)
    return caught.value


def demo(checkpoint, **reload):
    more = {"reload": reload} if reload else {}
    return {"name": "demo", "checkpoint": str(checkpoint), **more}


def ready(sidecar):
    client = sidecar.client()
    client.have("demo")
    return client


def page(sidecar):
    """What the control page shows of the one table: generation, content id."""
    raw = (sidecar.home / f"engramd.{sidecar.instance}.ctl").read_bytes()
    slot = raw[248:248 + 256]
    low, high = struct.unpack_from("<QQ", slot, 96)
    (sequence,) = struct.unpack_from("<Q", slot, 128)
    assert sequence % 2 == 0
    return struct.unpack_from("<Q", slot, 64)[0], f"{low:016x}{high:016x}"


def reload(client, **params):
    return client.finish(client.call("reload", table="demo", **params)["job"])


def generations(client):
    return {g["generation"]: g["state"]
            for g in client.table("demo")["generations"]}


def settled(client, expected):
    until(lambda: generations(client) == expected, f"{expected} are left")


def test_unchanged(make, model):
    """What is there already is not built again."""
    sidecar = make([demo(model)])
    client = ready(sidecar)
    before = client.table("demo")
    job = reload(client)
    assert (job["state"], job["unchanged"], job["generation"]) == (
        "done", True, 1)
    assert client.table("demo") == before
    job = reload(client, force=True)
    assert (job["state"], job["unchanged"], job["generation"]) == (
        "done", False, 2)
    after = client.table("demo")
    assert after["generation"] == 2
    # the same bytes: what an engine has cached stays good
    assert after["content_id"] == before["content_id"]
    settled(client, {2: "current"})
    assert all(".g2" in name for name in sidecar.segments())


def test_beside_a_client(make, model, seeds):
    """It keeps what it has; others get the new generation."""
    sidecar = make([demo(model)])
    client = ready(sidecar)
    old = client.table("demo")
    holder = sidecar.client()
    lease = holder.call("attach", table="demo")
    assert page(sidecar) == (1, old["content_id"])
    replace(model, seeds[1])
    job = reload(client)
    assert job["state"] == "done" and not job["unchanged"], job
    new = client.table("demo")
    assert new["generation"] == 2 and new["content_id"] != old["content_id"]
    assert page(sidecar) == (2, new["content_id"])
    assert new["leases"] == 1
    assert generations(client) == {1: "superseded", 2: "current"}
    assert client.call("attach", table="demo")["generation"] == 2
    holder.call("detach", lease=lease["lease"])
    settled(client, {2: "current"})
    jobs = [client.call("job.get", job=n) for n in range(1, job["job"] + 2)]
    assert jobs[-1]["kind"] == "free" and jobs[-1]["state"] == "done"


def test_a_client_that_dies_lets_go(make, model):
    sidecar = make([demo(model)])
    client = ready(sidecar)
    holder = sidecar.client()
    holder.call("attach", table="demo")
    reload(client, force=True)
    assert generations(client) == {1: "superseded", 2: "current"}
    sidecar.clients.remove(holder)
    holder.close()
    settled(client, {2: "current"})


def test_hold_and_publish(make, model, seeds):
    sidecar = make([demo(model)])
    client = ready(sidecar)
    old = client.table("demo")["content_id"]
    assert refused(client, "publish", table="demo").name == "NotReady"
    assert refused(client, "discard", table="demo").name == "NotReady"
    replace(model, seeds[1])
    job = reload(client, hold=True)
    assert job["state"] == "done" and job["generation"] == 2
    assert generations(client) == {1: "current", 2: "held"}
    assert page(sidecar) == (1, old)
    error = refused(client, "reload", table="demo")
    assert error.name == "AlreadyExists" and "generation 2" in error.message
    held = client.table("demo")["generations"][0]
    error = refused(client, "publish", table="demo", content_id=old)
    assert error.name == "InvalidArgument"
    assert refused(client, "publish", table="demo",
                   content_id="XY").data["path"] == "content_id"
    got = client.call("publish", table="demo", content_id=held["content_id"])
    assert got == {"generation": 2, "content_id": held["content_id"]}
    assert page(sidecar) == (2, held["content_id"])
    settled(client, {2: "current"})


def test_discard(make, model):
    sidecar = make([demo(model)])
    client = ready(sidecar)
    reload(client, hold=True, force=True)
    assert client.call("discard", table="demo") == {}
    settled(client, {1: "current"})
    # its number is not given again: it may still be on its way out
    assert reload(client, force=True)["generation"] == 3


def test_rollback(make, model, seeds):
    sidecar = make([demo(model, retain_seconds=1000)])
    client = ready(sidecar)
    old = client.table("demo")["content_id"]
    assert refused(client, "rollback", table="demo").name == "GenerationGone"
    replace(model, seeds[1])
    reload(client)
    new = client.table("demo")["content_id"]
    assert generations(client) == {1: "superseded", 2: "current"}
    assert client.call("rollback", table="demo") == {
        "generation": 1, "content_id": old}
    assert page(sidecar) == (1, old)
    assert client.call("attach", table="demo")["generation"] == 1
    # and back again
    assert client.call("rollback", table="demo")["content_id"] == new
    assert page(sidecar) == (2, new)
    # the next reload does not wait for what is kept
    client.call("rollback", table="demo")
    assert reload(client)["generation"] == 3
    assert client.table("demo")["content_id"] == new
    settled(client, {1: "superseded", 3: "current"})


def test_rollback_while_it_is_held(make, model):
    """Without retain_seconds it is there as long as somebody has it."""
    sidecar = make([demo(model)])
    client = ready(sidecar)
    holder = sidecar.client()
    holder.call("attach", table="demo")
    reload(client, force=True)
    assert client.call("rollback", table="demo")["generation"] == 1
    settled(client, {1: "current"})
    assert refused(client, "rollback", table="demo").name == "GenerationGone"


def test_another_checkpoint(make, seeds):
    """For a configured table only as long as the table is not reloaded."""
    sidecar = make([demo(seeds[0])])
    client = ready(sidecar)
    assert reload(client, checkpoint=str(seeds[1]))["generation"] == 2
    assert client.table("demo")["checkpoint"] == str(seeds[1])
    assert reload(client)["generation"] == 3
    assert client.table("demo")["checkpoint"] == str(seeds[0])
    client.load("other", checkpoint=str(seeds[0]))
    client.finish(client.call("reload", table="other",
                              checkpoint=str(seeds[1]))["job"])
    job = client.finish(client.call("reload", table="other")["job"])
    assert job["unchanged"]
    assert client.table("other")["checkpoint"] == str(seeds[1])
    error = refused(client, "reload", table="demo", checkpoint="relative")
    assert error.name == "InvalidArgument", error.message


def test_failed_reload_changes_nothing(make, model):
    sidecar = make([demo(model)])
    client = ready(sidecar)
    before = client.table("demo")
    shown = page(sidecar)
    (model / "config.json").unlink()
    job = reload(client)
    assert job["state"] == "failed" and "config.json" in \
        job["error"]["message"], job
    after = client.table("demo")
    assert after["state"] == "ready" and page(sidecar) == shown
    assert after["generations"] == before["generations"]
    assert after["error"]["message"] == job["error"]["message"]
    segments = sidecar.segments()
    assert segments and all(".g1" in name for name in segments)


@pytest.mark.parametrize("option, value, said", [
    ("--dim", "96", "dim is 96 where it was 64"),
    ("--heads", "4", "num_heads is 4 where it was 8"),
    ("--max-ngram", "3", "max_ngram is 3 where it was 4"),
    ("--layers", "1,15", "layer_id is 15 where it was 14"),
    ("--layers", "1", "there are 1 layers where there were 2"),
    ("--vocab-size", "2048", "length of the token map is 2048"),
])
def test_geometry(make, tmp_path, seeds, option, value, said):
    """Refused by name while somebody holds the table, else taken."""
    shape = list(SHAPE)
    shape[shape.index(option) + 1] = value
    other = engramd.synth(tmp_path / "other", *shape, "--engram-vocab-size",
                          "1000")
    sidecar = make([demo(seeds[0])])
    client = ready(sidecar)
    holder = sidecar.client()
    lease = holder.call("attach", table="demo")
    job = reload(client, checkpoint=str(other))
    assert job["state"] == "failed"
    assert job["error"]["data"]["name"] == "GeometryMismatch"
    assert said in job["error"]["message"], job["error"]
    assert "generation 1" in job["error"]["message"]
    assert page(sidecar)[0] == 1
    holder.call("detach", lease=lease["lease"])
    assert reload(client, checkpoint=str(other))["state"] == "done"
    assert page(sidecar)[0] == 2


def test_geometry_of_one_that_was_held(make, tmp_path, seeds):
    """It is asked again when it is published."""
    other = engramd.synth(tmp_path / "other", *SMALL[:-2],
                          "--engram-vocab-size", "1000", "--dim", "96")
    sidecar = make([demo(seeds[0])])
    client = ready(sidecar)
    assert reload(client, checkpoint=str(other), hold=True)["state"] == "done"
    holder = sidecar.client()
    lease = holder.call("attach", table="demo")
    assert refused(client, "publish", table="demo").name == "GeometryMismatch"
    assert generations(client) == {1: "current", 2: "held"}
    holder.call("detach", lease=lease["lease"])
    assert client.call("publish", table="demo")["generation"] == 2


def test_rows_may_be_more(make, tmp_path, seeds):
    other = engramd.synth(tmp_path / "other", *SHAPE, "--engram-vocab-size",
                          "3000")
    sidecar = make([demo(seeds[0])])
    client = ready(sidecar)
    client.call("attach", table="demo")
    assert reload(client, checkpoint=str(other))["state"] == "done"


def test_overdue(make, model):
    """Who holds a superseded generation for too long is named, once."""
    sidecar = make([demo(model, drain_seconds=1)])
    client = ready(sidecar)
    watcher = sidecar.client()
    watcher.call("events.subscribe")
    holder = sidecar.client()
    holder.call("client.name", name="a slow engine")
    holder.call("attach", table="demo")
    reload(client, force=True)
    told = watcher.event("event.overdue")
    assert told["table"] == "demo" and told["generation"] == 1
    assert [h["name"] for h in told["holders"]] == ["a slow engine"]
    assert "by=\"pid" in sidecar.log() and "(a slow engine)" in sidecar.log()
    assert sidecar.log().count("superseded generation is still held") == 1


def test_unload_waits_for_all_generations(make, model):
    sidecar = make([demo(model)])
    client = ready(sidecar)
    holder = sidecar.client()
    lease = holder.call("attach", table="demo")
    reload(client, force=True)
    number = client.call("unload", table="demo")["job"]
    assert client.call("job.get", job=number)["phase"] == "waiting"
    assert generations(client) == {1: "unwanted", 2: "current"}
    holder.call("detach", lease=lease["lease"])
    assert client.finish(number)["state"] == "done"
    assert sidecar.segments() == []


def test_busy(make, model):
    """One job a table; `publish` and `rollback` do not get between."""
    sidecar = make([demo(model, retain_seconds=100)])
    client = ready(sidecar)
    reload(client, force=True)
    holder = sidecar.client()
    holder.call("attach", table="demo")
    number = client.call("unload", table="demo")["job"]
    for method in ("reload", "publish", "rollback"):
        error = refused(client, method, table="demo")
        assert error.name == "Busy" and error.data["job"] == number
    client.call("job.cancel", job=number)
    # cancelled: what was kept is gone all the same
    settled(client, {2: "current"})


def test_not_loaded(make, model):
    sidecar = make([dict(demo(model), load="on_demand")])
    client = sidecar.client()
    assert refused(client, "reload", table="demo").name == "NotReady"
    assert refused(client, "reload", table="none").name == "NotFound"
    assert refused(client, "rollback", table="demo").name == "GenerationGone"


def test_many_jobs_do_not_put_off_the_clock(make, model):
    """Whatever happens once a second does, after any number of jobs."""
    sidecar = make([demo(model)])
    client = ready(sidecar)
    for _ in range(300):
        assert reload(client)["unchanged"]

    def heartbeat():
        raw = (sidecar.home / f"engramd.{sidecar.instance}.ctl").read_bytes()
        return struct.unpack_from("<Q", raw, 104)[0]

    before = heartbeat()
    until(lambda: heartbeat() != before, "its heart beats")


# ---- drain first ----

def test_drain_first(make, model, seeds):
    sidecar = make([demo(model, mode="drain_first")])
    client = ready(sidecar)
    holder = sidecar.client()
    lease = holder.call("attach", table="demo")
    # nobody is bothered for what is there already
    assert reload(client)["unchanged"]
    assert page(sidecar)[0] == 1
    assert refused(client, "reload", table="demo",
                   hold=True).data["path"] == "hold"
    replace(model, seeds[1])
    number = client.call("reload", table="demo")["job"]
    until(lambda: page(sidecar)[0] == 0, "clients are told")
    error = refused(client, "attach", table="demo")
    assert error.name == "Draining" and "replaced" in error.message
    holder.call("detach", lease=lease["lease"])
    job = client.finish(number)
    assert job["state"] == "done" and job["generation"] == 2
    assert page(sidecar)[0] == 2
    assert generations(client) == {2: "current"}


def test_drain_first_without_room(make, tmp_path, big_checkpoint, seeds):
    """One copy at a time is in memory, never two."""
    sidecar = make([demo(seeds[0], mode="drain_first")])
    client = ready(sidecar)
    seen = set()
    number = client.call("reload", table="demo",
                         checkpoint=str(big_checkpoint))["job"]
    while client.call("job.get", job=number)["state"] == "running":
        seen.add(frozenset(name.rpartition(".g")[2].partition(".")[0]
                           for name in sidecar.segments()))
    assert client.call("job.get", job=number)["state"] == "done"
    assert all(len(numbers) <= 1 for numbers in seen), seen


def test_drain_first_in_vain(make, model):
    """Somebody does not let go: named, and all is as it was."""
    sidecar = make([demo(model, mode="drain_first", drain_seconds=1)])
    client = ready(sidecar)
    holder = sidecar.client()
    holder.call("client.name", name="an engine")
    lease = holder.call("attach", table="demo")
    job = reload(client, force=True)
    assert job["state"] == "failed" and job["error"]["data"]["name"] == "TimedOut"
    assert "(an engine)" in job["error"]["message"]
    assert page(sidecar)[0] == 1
    assert client.table("demo")["state"] == "ready"
    holder.call("detach", lease=lease["lease"])
    assert reload(client, force=True)["generation"] == 2


def test_drain_first_cancelled(make, model):
    sidecar = make([demo(model, mode="drain_first")])
    client = ready(sidecar)
    holder = sidecar.client()
    holder.call("attach", table="demo")
    number = client.call("reload", table="demo", force=True)["job"]
    until(lambda: page(sidecar)[0] == 0, "clients are told")
    client.call("job.cancel", job=number)
    assert client.finish(number)["state"] == "canceled"
    assert page(sidecar)[0] == 1


def test_drain_first_of_a_broken_checkpoint(make, model):
    """Seen before anybody is told to let go."""
    sidecar = make([demo(model, mode="drain_first")])
    client = ready(sidecar)
    client.call("attach", table="demo")
    (model / "config.json").unlink()
    assert reload(client)["state"] == "failed"
    assert page(sidecar)[0] == 1


# ---- stopping ----

@pytest.mark.parametrize("mode", ["beside", "drain_first"])
def test_stop_meanwhile(make, model, mode):
    """The fixture sees that nothing is left."""
    sidecar = make([demo(model, mode=mode, retain_seconds=100)])
    client = ready(sidecar)
    if mode == "beside":
        reload(client, force=True)
        reload(client, force=True, hold=True)
    holder = sidecar.client()
    holder.call("attach", table="demo")
    if mode == "beside":
        client.call("discard", table="demo")
    client.call("reload", table="demo", force=True)
    client.call("shutdown")
    assert sidecar.wait() == 0


def test_keep_leaves_what_is_current(make, model):
    sidecar = make([demo(model, retain_seconds=100)])
    client = ready(sidecar)
    reload(client, force=True)
    reload(client, force=True, hold=True)
    client.call("shutdown", keep=True)
    assert sidecar.wait() == 0
    sidecar.hang_up()
    assert {name.rpartition(".")[2] for name in sidecar.segments()} == {"g2"}
    sidecar.start()
    table = ready(sidecar).table("demo")
    assert table["adopted"] and table["generation"] == 2


def test_killed_while_two_are_there(make, model, seeds):
    """The next one takes over what the checkpoint is now."""
    sidecar = make([demo(model, retain_seconds=100)])
    client = ready(sidecar)
    replace(model, seeds[1])
    reload(client)
    content = client.table("demo")["content_id"]
    client.call("rollback", table="demo")
    sidecar.kill()
    sidecar.start()
    table = ready(sidecar).table("demo")
    assert table["adopted"] and table["generation"] == 2
    assert table["content_id"] == content
    assert all(".g2" in name for name in sidecar.segments())


def test_conduct_takes_effect_at_once(make, model):
    """A table's `reload` is not what it is built from."""
    sidecar = make([demo(model)])
    client = ready(sidecar)
    sidecar.config["tables"] = [demo(model, retain_seconds=1000)]
    sidecar.write_config()
    client.call("config.reload")
    assert "takes effect" not in sidecar.log()
    assert reload(client)["unchanged"]
    reload(client, force=True)
    assert client.call("rollback", table="demo")["generation"] == 1
