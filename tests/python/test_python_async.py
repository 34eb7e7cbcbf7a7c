# SPDX-License-Identifier: Apache-2.0
"""AsyncClient against a real engramd."""
import asyncio

import pytest

import engram_client
from engram_client import AsyncClient, errors


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 120))


def test_control(sidecar):
    async def ask():
        async with AsyncClient(sidecar.socket) as client:
            assert client.server_version == engram_client.__version__
            await client.ping()
            assert (await client.status())["boot_epoch"] == \
                f"{client.boot_epoch:016x}"
            answers = await asyncio.gather(*(client.table("demo")
                                             for _ in range(20)))
            assert all(answer["state"] == "ready" for answer in answers)
            assert len(await client.tables()) == 2
            with pytest.raises(errors.NotFound):
                await client.table("dmo")

    run(ask())


def public(kind):
    return {name for name in vars(kind) if not name.startswith("_")}


def test_both_clients_know_the_same():
    assert public(AsyncClient) - {"connect"} == public(engram_client.Client)


def test_what_the_sidecar_says_of_itself(own_sidecar):
    async def ask():
        async with AsyncClient(own_sidecar.socket) as client:
            with engram_client.Client(own_sidecar.socket) as blocking:
                assert client.instance == blocking.instance
                assert client.capabilities == blocking.capabilities
                assert await client.methods() == blocking.methods()
                assert await client.config() == blocking.config()
            await client.shutdown()

    run(ask())
    assert own_sidecar.wait() == 0


def test_load_while_the_loop_goes_on(own_sidecar):
    async def load():
        seen, ticks = [], 0
        async with AsyncClient(own_sidecar.socket) as client:
            loading = asyncio.ensure_future(
                client.load("big", progress=seen.append))
            while not loading.done():
                await client.ping()  # answered while the load runs
                ticks += 1
            job = await loading
            assert job["state"] == "done" and seen[-1] == job
            assert ticks > 1
            assert await client.load("big") is None
            assert (await client.verify("big"))["state"] == "done"
            job = await client.unload("big", wait=False)
            assert (await client.wait(job["job"]))["state"] == "done"

    run(load())


def test_events(sidecar):
    async def follow():
        async with AsyncClient(sidecar.socket) as client:
            seen = []
            async for event in client.events():
                seen.append(event["method"])
                if len(seen) == 2:  # the two tables
                    break
            assert seen == ["event.table"] * 2

    run(follow())


def test_attach(sidecar):
    async def attach():
        async with AsyncClient(sidecar.socket) as client:
            table = await client.attach("demo", layers=[9])
            assert table.hash([1, 2, 3]).shape[0] == 3
            assert (await client.table("demo"))["leases"] == 1
        async with AsyncClient(sidecar.socket) as client:
            assert (await client.table("demo"))["leases"] == 0

    run(attach())


def test_a_cancelled_call_confuses_no_other(sidecar):
    async def cancel():
        async with AsyncClient(sidecar.socket) as client:
            for _ in range(20):
                call = asyncio.ensure_future(client.status())
                await asyncio.sleep(0)
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
                assert (await client.table("demo"))["name"] == "demo"

    run(cancel())


def test_gone(own_sidecar):
    async def lose():
        async with AsyncClient(own_sidecar.socket) as client:
            own_sidecar.kill()
            for _ in range(2):
                with pytest.raises(errors.Disconnected):
                    await client.ping()
            own_sidecar.start()
            await client.ping()
        with pytest.raises(errors.Disconnected):
            await AsyncClient("/nowhere/s").connect()

    run(lose())
