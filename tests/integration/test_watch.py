# SPDX-License-Identifier: Apache-2.0
"""Tables that are reloaded when their checkpoint changes.

That nothing happens is seen by a second table, "clock", whose checkpoint is
touched later: what is noticed at all is noticed before that.
"""
import itertools
import os
import shutil
import time

import pytest

from engramd import RpcError, replace, until

INDEX = "model.safetensors.index.json"


def watched(checkpoint, name="demo", seconds=1, **more):
    return {"name": name, "checkpoint": str(checkpoint),
            "watch": {"debounce_seconds": seconds}, **more}


def noticed(sidecar, name="demo"):
    """How often a change of its checkpoint has started something."""
    return sum('"checkpoint has changed"' in line and f"table={name} " in line
               for line in sidecar.log().splitlines())


def jobs(client, table):
    """The kinds and states of the table's jobs; those that free left out."""
    found = []
    for number in itertools.count(1):
        try:
            job = client.call("job.get", job=number)
        except RpcError:
            return found
        if job["table"] == table and job["kind"] != "free":
            found.append((job["kind"], job["state"]))


def generation(client, number):
    until(lambda: client.table("demo")["generation"] == number and
          client.table("demo")["job"] is None, f"generation {number}")


def switch(link, to):
    """Another target, by one rename."""
    new = link.with_name(link.name + ".new")
    new.symlink_to(to)
    new.rename(link)


@pytest.fixture
def clock(tmp_path, seeds):
    shutil.copytree(seeds[0], tmp_path / "clock")
    return tmp_path / "clock"


@pytest.fixture
def start(make, clock):
    """A sidecar and a client, once the tables are as their checkpoints are."""
    def run(*tables):
        sidecar = make([*tables, watched(clock, "clock")])
        client = sidecar.client()
        client.have("clock")
        sidecar.tick = lambda: tick(sidecar, client, clock)
        return sidecar, client

    return run


def tick(sidecar, client, clock):
    """All that was noticeable up to now has been noticed."""
    # a reload that runs may see what comes now, and nothing more is to do
    until(lambda: client.table("clock")["job"] is None, "the clock is ready")
    before = noticed(sidecar, "clock")
    (clock / INDEX).touch()
    until(lambda: noticed(sidecar, "clock") > before, "the clock ticks")


def test_index_renamed(start, model, seeds):
    sidecar, client = start(watched(model))
    old = client.have("demo")["content_id"]
    sidecar.tick()
    assert noticed(sidecar) == 0
    assert jobs(client, "demo") == [("load", "done")]
    replace(model, seeds[1])
    generation(client, 2)
    assert client.table("demo")["content_id"] != old
    sidecar.tick()
    assert jobs(client, "demo") == [("load", "done"), ("reload", "done")]


def test_weights_in_place_are_not_noticed(start, model):
    sidecar, client = start(watched(model))
    client.have("demo")
    for file in model.glob("*.safetensors"):
        file.touch()
    sidecar.tick()
    assert noticed(sidecar) == 0


def test_weights_without_an_index(start, model, seeds):
    """All of them are looked at."""
    (model / INDEX).unlink()
    sidecar, client = start(watched(model))
    client.have("demo")
    for file in seeds[1].glob("*.safetensors"):
        shutil.copy2(file, model / ".new")
        (model / ".new").rename(model / file.name)
    generation(client, 2)
    sidecar.tick()
    assert "reload" in dict(jobs(client, "demo"))


def test_several_steps(start, model, seeds):
    """Within the debounce they are one change."""
    seconds = 5
    sidecar, client = start(watched(model, seconds=seconds))
    client.have("demo")
    longest, last = 0, time.monotonic()
    for step in range(9):
        replace(model, seeds[step % 2])
        time.sleep(0.3)
        now = time.monotonic()
        longest, last = max(longest, now - last), now
    replace(model, seeds[1])
    if longest > seconds - 2:
        pytest.skip(f"the machine stood still for {longest:.1f} s")
    generation(client, 2)
    sidecar.tick()
    assert noticed(sidecar) == 1


def test_link_to_another_directory(start, tmp_path, seeds):
    link = tmp_path / "current"
    link.symlink_to(seeds[0])
    _, client = start(watched(link))
    old = client.have("demo")["content_id"]
    switch(link, seeds[1])
    generation(client, 2)
    new = client.table("demo")["content_id"]
    switch(link, seeds[0])
    generation(client, 3)
    assert old == client.table("demo")["content_id"] != new


def test_kubernetes_volume(start, tmp_path, seeds):
    """Files are links through "..data", which is switched."""
    volume = tmp_path / "volume"
    volume.mkdir()
    for number, seed in enumerate(seeds):
        shutil.copytree(seed, volume / f"..2026_{number}")
    (volume / "..data").symlink_to("..2026_0")
    for file in seeds[0].iterdir():
        (volume / file.name).symlink_to(f"..data/{file.name}")
    _, client = start(watched(volume))
    old = client.have("demo")["content_id"]
    switch(volume / "..data", "..2026_1")
    generation(client, 2)
    assert client.table("demo")["content_id"] != old
    shutil.rmtree(volume / "..2026_0")


@pytest.mark.parametrize("name", [INDEX, "config.json"])
def test_removed(start, model, seeds, name):
    """Waited for: it is being written, or somebody makes a mistake."""
    sidecar, client = start(watched(model))
    client.have("demo")
    (model / name).rename(model / "away")
    sidecar.tick()
    (model / "away").rename(model / name)
    sidecar.tick()
    assert noticed(sidecar) == 0
    (model / name).unlink()
    sidecar.tick()
    assert noticed(sidecar) == 0
    replace(model, seeds[1])
    generation(client, 2)
    assert noticed(sidecar) == 1


def test_link_that_leads_nowhere(start, tmp_path, seeds):
    link = tmp_path / "current"
    link.symlink_to(seeds[0])
    sidecar, client = start(watched(link))
    client.have("demo")
    switch(link, tmp_path / "none")
    sidecar.tick()
    assert noticed(sidecar) == 0
    switch(link, seeds[1])
    generation(client, 2)


def test_touched(start, model):
    """The reload finds out what has come of it."""
    sidecar, client = start(watched(model))
    client.have("demo")
    os.utime(model / INDEX)
    until(lambda: noticed(sidecar) == 1, "the change is noticed")
    until(lambda: len(jobs(client, "demo")) == 2 and
          client.table("demo")["job"] is None, "the reload ends")
    assert jobs(client, "demo")[1] == ("reload", "done")
    assert client.table("demo")["state"] == "ready"


def test_load_that_failed(start, model, seeds):
    """Loaded, once the checkpoint is there."""
    (model / "config.json").unlink()
    sidecar, client = start(watched(model))
    until(lambda: client.table("demo")["state"] == "failed", "it fails")
    sidecar.tick()
    assert noticed(sidecar) == 0
    replace(model, seeds[0])
    until(lambda: client.table("demo")["state"] == "ready", "it is loaded")
    assert jobs(client, "demo") == [("load", "failed"), ("load", "done")]


def test_reload_that_fails(start, model, seeds):
    """Tried once for each change."""
    sidecar, client = start(watched(model))
    client.have("demo")
    (model / ".new").write_text("{}")
    (model / ".new").rename(model / INDEX)
    until(lambda: client.table("demo")["error"], "it fails")
    sidecar.tick()
    sidecar.tick()
    assert jobs(client, "demo") == [("load", "done"), ("reload", "failed")]
    assert client.table("demo")["state"] == "ready"
    replace(model, seeds[1])
    generation(client, 2)
    assert client.table("demo")["error"] is None


def test_reloaded_by_hand(start, model, seeds):
    """What a reload has seen already is not loaded again."""
    sidecar, client = start(watched(model))
    client.have("demo")
    replace(model, seeds[1])
    assert client.finish(client.call("reload", table="demo")["job"])[
        "state"] == "done"
    sidecar.tick()
    assert client.table("demo")["generation"] == 2
    # the watch may have been first
    assert jobs(client, "demo").count(("reload", "done")) - noticed(
        sidecar) == 1


def test_taken_back(start, model, seeds):
    """A rollback, or a reload from elsewhere, holds until the next change."""
    sidecar, client = start(watched(model, reload={"retain_seconds": 1000}))
    client.have("demo")
    replace(model, seeds[1])
    generation(client, 2)
    client.call("rollback", table="demo")
    sidecar.tick()
    assert client.table("demo")["generation"] == 1
    client.finish(client.call("reload", table="demo",
                              checkpoint=str(seeds[0]), force=True)["job"])
    sidecar.tick()
    assert client.table("demo")["checkpoint"] == str(seeds[0])
    assert noticed(sidecar) == 1
    replace(model, seeds[0])
    until(lambda: client.table("demo")["checkpoint"] == str(model),
          "the change is loaded")


def test_not_loaded(start, model, seeds):
    """Nobody has asked for it, or somebody has unloaded it."""
    sidecar, client = start(watched(model, load="on_demand"))
    replace(model, seeds[1])
    sidecar.tick()
    assert client.table("demo")["state"] == "absent"
    client.load("demo")
    client.finish(client.call("unload", table="demo")["job"])
    replace(model, seeds[0])
    sidecar.tick()
    assert client.table("demo")["state"] == "absent"
    assert jobs(client, "demo") == [("load", "done"), ("unload", "done")]


def test_waits_for_what_is_held(start, model, seeds):
    sidecar, client = start(watched(model))
    client.have("demo")
    client.finish(client.call("reload", table="demo", hold=True,
                              force=True)["job"])
    replace(model, seeds[1])
    sidecar.tick()
    assert noticed(sidecar) == 0
    assert "reloaded once the held generation is" in sidecar.log()
    client.call("discard", table="demo")
    generation(client, 3)


def test_waits_for_a_job(start, model, seeds):
    sidecar, client = start(watched(model))
    client.have("demo")
    holder = sidecar.client()
    holder.call("attach", table="demo")
    number = client.call("unload", table="demo")["job"]
    replace(model, seeds[1])
    sidecar.tick()
    assert noticed(sidecar) == 0
    client.call("job.cancel", job=number)
    generation(client, 2)


def test_turned_on_and_off(make, model, seeds):
    """At once, by the configuration; there is a thread only if need be."""
    plain = {"name": "demo", "checkpoint": str(model)}
    sidecar = make([plain])
    client = sidecar.client()
    client.have("demo")
    until(lambda: client.table("demo")["job"] is None, "nothing runs")
    threads = len(sidecar.threads())

    def configure(*tables):
        sidecar.config["tables"] = list(tables)
        sidecar.write_config()
        client.call("config.reload")

    replace(model, seeds[1])
    configure(watched(model))
    generation(client, 2)
    until(lambda: len(sidecar.threads()) == threads + 1, "one more thread")
    configure(plain, watched(seeds[0], "other"))
    client.have("other")
    replace(model, seeds[0])
    configure(plain, watched(seeds[1], "other"))
    until(lambda: noticed(sidecar, "other") == 1, "the other is reloaded")
    assert noticed(sidecar) == 1
    assert "takes effect when the table is reloaded" in sidecar.log()
    configure(watched(model))
    generation(client, 3)


def test_not_configured(make, model, seeds):
    """The parameters of `load` have it too."""
    sidecar = make()
    client = sidecar.client()
    client.load("demo", checkpoint=str(model),
                watch={"debounce_seconds": 1})
    replace(model, seeds[1])
    generation(client, 2)
    with pytest.raises(RpcError) as caught:
        client.call("load", table="more", checkpoint=str(model),
                    watch={"debounce_seconds": 0})
    assert caught.value.data["path"] == "watch.debounce_seconds"
    client.finish(client.call("unload", table="demo")["job"])


def test_stop_while_watched(start, model):
    """Also with news that nobody has read: the fixture sees the end."""
    sidecar, client = start(watched(model))
    client.have("demo")
    (model / INDEX).touch()
    client.call("shutdown")
    assert sidecar.wait() == 0
