"""Two folders of one name uploaded by the stock CLI: the second overwrites the first, and is refused under its id.

The control plane runs strict here: its file server keeps one file per address, as ClearML's does.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.controller.run import made
from gateway.registry.clearml import ClearMLRegistry
from gateway.spec import CONTENT_HASH, records_of
from tests.control_planes import RunningControlPlane, control_plane
from tests.gateways import GatewayProcess
from tests.stock import Client
from tests.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.long]

HOOK = """
import pathlib
class Preprocess:
    def load(self, local_file_name):
        self.text = (pathlib.Path(local_file_name) / "says.txt").read_text()
    def process(self, data, state, collect=None):
        return {"says": self.text}
"""


class World(Client):
    """Of a strict control plane, with one serving Task."""

    def __init__(self, server: RunningControlPlane, folder: Path) -> None:
        super().__init__(server, folder)
        (folder / "hook.py").write_text(HOOK)
        self.create("overwriting")

    def publish(self, parent: str, says: str) -> str:
        """Publish the folder ``PARENT/bundle``; the model's id."""
        bundle = self.folder / parent / "bundle"
        bundle.mkdir(parents=True)
        (bundle / "says.txt").write_text(says)
        return self.upload(parent, bundle, project="p")

    def serve(self, endpoint: str, model: str) -> None:
        """Serve a model by the hook that says what is in it."""
        self.add(endpoint, "--model-id", model, "--preprocess", "hook.py", engine="custom")

    def gateway(self, state: str) -> GatewayProcess:
        """A gateway process of its own."""
        return GatewayProcess(self, self.folder / state)


@contextlib.contextmanager
def controlled(task: str) -> Iterator[None]:
    """A controller of the serving Task, in this process."""
    stop = threading.Event()
    thread = threading.Thread(target=made(ClearMLRegistry(task), 1.0, (), lambda _: None).run, args=(stop,))
    thread.start()
    yield
    stop.set()
    thread.join()


def failed(gateway: GatewayProcess) -> list[Any]:
    """What a gateway has given up for now."""
    return [one for one in gateway.status().get("pending", ()) if one["state"] == "failed"]


def test_a_second_upload_of_the_same_folder_name_is_never_served_under_the_first_id(tmp_path: Path) -> None:
    """Who serves the first goes on, a new replica refuses it by name, the page's status and doctor say so."""
    with control_plane(tmp_path / "plane") as server, contextlib.ExitStack() as stack:
        world = World(server, tmp_path)
        stack.enter_context(world.here())
        stack.enter_context(controlled(world.task))
        first = world.publish("one", "first")
        world.serve("e", first)
        with world.gateway("a") as running:
            until(lambda: running.answer({}, "e") == (200, {"says": "first"}))
            registry = ClearMLRegistry(world.task)
            until(lambda: first in records_of(registry.task(), CONTENT_HASH))
            world.publish("two", "second")
            faults = until(lambda: running.status().get("faults"))
            assert f"model one ({first})" == faults[0]["subject"]
            assert "another upload has overwritten it" in faults[0]["message"]
            assert (200, {"says": "first"}) == running.answer({}, "e")

            with world.gateway("b") as fresh:
                pending = until(lambda: failed(fresh))
                assert f"model one ({first}) was registered with sha256" in pending[0]["reason"]
                assert "another upload has overwritten it" in pending[0]["reason"]
                assert 503 == fresh.answer({}, "e")[0]
            assert (200, {"says": "first"}) == running.answer({}, "e")

        with world.gateway("a") as restarted:  # with its files
            until(lambda: restarted.answer({}, "e") == (200, {"says": "first"}))
        doctor = world.ours("doctor", "--state-dir", str(tmp_path / "d"), code=None)
        assert "MISSING  serving Task" in doctor
        assert "another upload" in doctor

        shutil.rmtree(tmp_path / "two")
        mended = world.publish("first-again", "first")  # still the folder name: it overwrites, too
        assert mended != first
        renamed = tmp_path / "first-again" / "bundle"
        renamed.rename(tmp_path / "bundle-of-its-own")
        own = world.upload("own", tmp_path / "bundle-of-its-own", project="p")
        world.serve("e", own)
        with world.gateway("c") as last:
            until(lambda: last.answer({}, "e") == (200, {"says": "first"}))
            until(lambda: last.status()["faults"] == [])
