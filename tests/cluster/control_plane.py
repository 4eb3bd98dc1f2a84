"""A real control plane on loopback: etcd, API server, controllers, scheduler, and kwok for nodes and pods.

Everything it writes is in a folder of its own; ports are free ones, so that several run beside each other; every
process ends with the one that started it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from tests import kube_tools
from tests.cluster import programs
from tests.cluster.certificates import Authority
from tests.cluster.nodes import Machines, Played, stages
from tests.processes import Server, free_port
from tests.waiting import until

_COMMAND: Final = 330.0
"""Seconds within which kubectl or helm has to end: more than helm's own 300, which tests give to kubectl too."""

_MACHINES: Final = Machines()
_PLAYED: Final = Played()


class NotStarted(RuntimeError):
    """A part of the cluster ended; the message has the end of its log."""


@dataclass
class Cluster:
    """A running control plane; ``started`` makes one."""

    folder: Path
    authority: Authority
    server: str
    paths: Mapping[str, Path]
    processes: dict[str, Server] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    """Ports that a part keeps when it is started again."""

    @property
    def kubeconfig(self) -> Path:
        """What kubectl and helm need to be its administrator."""
        return self.folder / "admin.kubeconfig"

    @property
    def environment(self) -> dict[str, str]:
        """Variables for kubectl, helm and our own commands."""
        home = {"HOME": str(self.folder), "XDG_CACHE_HOME": str(self.folder / "cache")}
        return os.environ | home | {"KUBECONFIG": str(self.kubeconfig)}

    # --- what tests do ---

    def kubectl(
        self, *arguments: str, given: str | None = None, ok: Sequence[int] = (0,)
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl; AssertionError with its words unless it ends with one of ``ok``."""
        return self._run("kubectl", arguments, given, ok)

    def helm(
        self, *arguments: str, given: str | None = None, ok: Sequence[int] = (0,)
    ) -> subprocess.CompletedProcess[str]:
        """The same with helm."""
        return self._run("helm", arguments, given, ok)

    def get(self, kind: str, *arguments: str) -> Any:
        """Return an object or a list of objects as the API has them."""
        return json.loads(self.kubectl("get", kind, *arguments, "--output", "json").stdout)

    def raw(self, path: str) -> Any:
        """Return what the API answers at a path; None if it has nothing there, or what serves it is away."""
        done = self.kubectl("get", "--raw", path, ok=range(256))
        return json.loads(done.stdout) if done.returncode == 0 else None

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """Create or change objects."""
        self.kubectl("apply", "--server-side", "--filename", "-", given=yaml.safe_dump_all(objects))

    def define(self, *names: str) -> None:
        """Add custom resource definitions: those of ``programs.RESOURCES``."""
        for name in names:
            files = [part for path in programs.definitions(name) for part in ("--filename", str(path))]
            self.kubectl("apply", "--server-side", *files)
        self.wait("kube-apiserver", self._established)

    def _established(self) -> bool:
        """Whether every custom resource definition is served."""
        return all(
            any(
                one["type"] == "Established" and one["status"] == "True"
                for one in item["status"].get("conditions") or ()
            )
            for item in self.get("customresourcedefinitions")["items"]
        )

    def _run(
        self, name: str, arguments: Sequence[str], given: str | None, ok: Sequence[int]
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(kube_tools.unpacked(name)), *arguments], input=given, capture_output=True, text=True, check=False,
            env=self.environment, timeout=_COMMAND,
        )  # fmt: skip
        assert done.returncode in ok, f"{name} {' '.join(arguments)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    # --- processes ---

    def run(self, name: str, *command: str | Path, env: Mapping[str, str] | None = None) -> None:
        """Start a process; what it says goes to ``NAME.log`` in the folder."""
        self.processes[name] = Server(
            name, [str(each) for each in command], env=os.environ | (env or {}), log=self.folder / f"{name}.log",
            cwd=self.folder,
        )  # fmt: skip

    def end(self, name: str) -> None:
        """End a process and wait until it is gone."""
        self.processes.pop(name).stop()

    def wait(self, name: str, fact: Callable[[], object]) -> None:
        """Wait until ``fact()`` is true; NotStarted if the process ends before."""
        server = self.processes[name]
        until(lambda: fact() or not server.is_running(), pause=0.1, what=f"the start of {name} ({server.log})")
        if not server.is_running():
            raise NotStarted(f"{name} ended: {server.last_lines(15)}")

    def answers(self, address: str) -> bool:
        """Whether an address answers 200 to the administrator."""
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        context.load_cert_chain(self.authority.folder / "admin.crt", self.authority.folder / "admin.key")
        with contextlib.suppress(OSError, urllib.error.URLError):
            with urllib.request.urlopen(address, timeout=5, context=context) as answer:
                return bool(answer.status == 200)
        return False

    def login(self, name: str, user: str) -> Path:
        """Write the kubeconfig of a user, and return where it is."""
        certificate, key = self.authority.sign(name, user)
        cluster = {"server": self.server, "certificate-authority-data": _text(self.authority.certificate)}
        login = {"client-certificate-data": _text(certificate), "client-key-data": _text(key)}
        path = self.folder / f"{name}.kubeconfig"
        content = {
            "apiVersion": "v1", "kind": "Config", "current-context": name,
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": name, "user": login}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        }  # fmt: skip
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(content))
        return path


def _text(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


@contextlib.contextmanager
def started(
    folder: Path,
    *,
    machines: Machines = _MACHINES,
    played: Played = _PLAYED,
    autoscaled_every: str = "5s",
) -> Iterator[Cluster]:
    """Start a cluster in an empty folder, and end it with the context.

    ``autoscaled_every``: how often an HPA is looked at (Kubernetes: 15 s). Raises CannotBuild and NotStarted.
    """
    paths = programs.paths("etcd", "kubernetes", "kwok")
    authority = Authority(folder / "pki")
    cluster = Cluster(folder, authority, f"https://127.0.0.1:{free_port()}", paths)
    try:
        _start_api(cluster)
        _start_controllers(cluster, autoscaled_every)
        _start_nodes(cluster, machines, played)
        yield cluster
    finally:
        for server in reversed([*cluster.processes.values()]):
            server.kill()  # its state is thrown away: no reason to wait for a shutdown


def _start_api(cluster: Cluster) -> None:
    pki = cluster.authority
    client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    cluster.run(
        "etcd", cluster.paths["etcd"], "--data-dir", cluster.folder / "etcd", "--unsafe-no-fsync",
        "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
        "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}", "--log-level", "warn",
    )  # fmt: skip
    cluster.login("admin", "admin")
    cluster.wait("etcd", lambda: cluster.answers(f"{client}/health"))
    serving, serving_key = pki.sign("apiserver", "kube-apiserver")
    proxy, proxy_key = pki.sign("proxy", "front-proxy-client")
    cluster.run(
        "kube-apiserver", cluster.paths["kube-apiserver"], f"--etcd-servers={client}",
        "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
        f"--secure-port={cluster.server.rpartition(':')[2]}",
        "--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=Node,RBAC",
        f"--client-ca-file={pki.certificate}", f"--tls-cert-file={serving}", f"--tls-private-key-file={serving_key}",
        f"--service-account-key-file={pki.account_key}", f"--service-account-signing-key-file={pki.account_key}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--requestheader-client-ca-file={pki.certificate}", "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-", f"--proxy-client-cert-file={proxy}",
        f"--proxy-client-key-file={proxy_key}", "--enable-aggregator-routing=false", "--allow-privileged=true",
        "--profiling=false", f"--cert-dir={cluster.folder / 'apiserver-certs'}", "--event-ttl=3h",
    )  # fmt: skip
    cluster.wait("kube-apiserver", lambda: cluster.answers(f"{cluster.server}/readyz"))


def _start_controllers(cluster: Cluster, autoscaled_every: str) -> None:
    pki = cluster.authority
    for name, user, flags in (
        (
            "kube-controller-manager", "system:kube-controller-manager",
            [
                f"--service-account-private-key-file={pki.account_key}", f"--root-ca-file={pki.certificate}",
                "--use-service-account-credentials", f"--horizontal-pod-autoscaler-sync-period={autoscaled_every}",
                "--controllers=*,-nodeipam,-node-route-controller,-cloud-node-lifecycle,-service-lb-controller",
                f"--cluster-signing-cert-file={pki.certificate}", f"--cluster-signing-key-file={pki.folder / 'ca.key'}",
            ],
        ),
        ("kube-scheduler", "system:kube-scheduler", []),
    ):  # fmt: skip
        login = cluster.login(name, user)
        port = free_port()
        cluster.run(
            name, cluster.paths[name], f"--kubeconfig={login}", f"--authentication-kubeconfig={login}",
            f"--authorization-kubeconfig={login}", "--bind-address=127.0.0.1", f"--secure-port={port}",
            "--leader-elect=false", f"--cert-dir={cluster.folder / f'{name}-certs'}", *flags,
        )  # fmt: skip


def _start_nodes(cluster: Cluster, machines: Machines, played: Played) -> None:
    (cluster.folder / "stages.yaml").write_text(stages(played))
    cluster.run(
        "kwok", cluster.paths["kwok"], f"--kubeconfig={cluster.kubeconfig}",
        f"--config={cluster.folder / 'stages.yaml'}",
        "--manage-all-nodes=true", "--manage-nodes-with-annotation-selector=", "--node-ip=127.0.0.1",
        "--cidr=10.244.0.1/16", f"--server-address=127.0.0.1:{free_port()}", "--node-lease-duration-seconds=40",
    )  # fmt: skip
    nodes = machines.objects()
    cluster.kubectl("create", "--filename", "-", given=yaml.safe_dump_all(nodes))

    def ready() -> bool:
        items = cluster.get("nodes")["items"]
        return len(items) == len(nodes) and all(
            any(each["type"] == "Ready" and each["status"] == "True" for each in item["status"].get("conditions", ()))
            and not any("not-ready" in taint["key"] for taint in item["spec"].get("taints", ()))
            for item in items
        )

    cluster.wait("kwok", ready)
    cluster.wait("kube-controller-manager", lambda: cluster.raw("/api/v1/namespaces/default/serviceaccounts/default"))
