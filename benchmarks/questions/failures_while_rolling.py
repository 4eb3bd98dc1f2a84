"""Do requests fail while images, settings, certificates or nodes are replaced?

Two real gateways run behind a stand-in for a Service, and two real Tritons with model sync behind a name. A new process
starts first, then the old one ends like a pod. Prints one JSON line per trial; the exit code is 0 if nothing failed.
"""

from __future__ import annotations

import os
import signal
import socket
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import trustme

from benchmarks.shared.callers import Seen
from benchmarks.shared.command import narrator, parser, tell
from benchmarks.shared.fleet import AGE, Fleet, fleet
from benchmarks.shared.processes import LOOPBACK
from benchmarks.shared.results import DOCS, put, save, table
from gateway.edge.http.certificates import LOOK_S

TAKES = "4 minutes"
SAVES = "results/rolling.json, docs/rolling.md (--write-docs)"


def gateway_image(made: Fleet) -> str:
    """Start a new gateway, then end an old one; for both."""
    for old in made.gateways[:2]:
        made.start_gateway()
        made.end_gateway(old)
    return "both gateways replaced"


def configuration(made: Fleet) -> str:
    """The same with other settings; checks that the new gateways have them."""
    made.settings["TRITON_GATEWAY_MAX_BATCH_ROWS"] = "8"
    made.settings["TRITON_GATEWAY_ACCESS_LOG"] = "true"
    gateway_image(made)
    time.sleep(1.0)
    logs = [(made.state / "logs" / f"{gateway.name}.log").read_text() for gateway in made.gateways]
    if not all("request ok" in log for log in logs):
        raise RuntimeError("the new gateways do not have the new settings")
    return "both gateways replaced, with other settings"


def triton_image(made: Fleet) -> str:
    """Start a new Triton and wait for its models, then end an old one; for both."""
    for old in made.tritons[:2]:
        made.start_triton(in_place_of="" if made.follows_a_name else _ended(made, old))
        if made.follows_a_name:
            made.end_triton(old)
    return "both Tritons replaced, each by one that had loaded its models" + (
        "" if made.follows_a_name else " (one at a time on the same address)"
    )


def _ended(made: Fleet, old: Any) -> str:
    made.end_triton(old)
    return str(old.host)


def node_drain(made: Fleet) -> str:
    """End a gateway and a Triton of one node at the same time, while their replacements start elsewhere."""
    gateway, triton = made.gateways[0], made.tritons[0]
    if made.follows_a_name:
        made.together(made.start_gateway, made.start_triton)
    made.together(lambda: made.end_gateway(gateway), lambda: made.end_triton(triton))
    if not made.follows_a_name:
        made.start_gateway()
        made.start_triton(in_place_of=triton.host)
    return "a gateway and a Triton of one node ended together"


def lost_triton(made: Fleet) -> str:
    """Kill a Triton (SIGKILL), as if its node had failed. This goes beyond a rolling update."""
    triton = made.tritons[0]
    made.tritons = made.tritons[1:]
    os.killpg(triton.server.pid, signal.SIGKILL)
    time.sleep(3.0)
    triton.sync.end()
    made.start_triton(in_place_of="" if made.follows_a_name else triton.host)
    return "a Triton killed without warning, then replaced"


def certificates(made: Fleet) -> str:
    """Replace the certificate and authority of the port in their files, without a restart."""
    authority = _issue(made.state, trustme.CA(), made)
    time.sleep(LOOK_S + 3.0)
    only_new = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())
    for gateway in made.gateways:
        with socket.create_connection((LOOPBACK, gateway.port), 5) as plain:
            only_new.wrap_socket(plain, server_hostname="gateway").close()
    return "certificate and authority replaced in their files, no restart"


def _issue(state: Path, authority: trustme.CA, made: Fleet | None = None) -> trustme.CA:
    issued = authority.issue_cert("gateway")
    if made is not None and made.tls is not None:
        made.tls.load_verify_locations(cadata=authority.cert_pem.bytes().decode())
    for name, parts in (("key.pem", [issued.private_key_pem]), ("cert.pem", issued.cert_chain_pems)):
        aside = state / f"{name}.new"
        aside.write_bytes(b"".join(part.bytes() for part in parts))
        aside.replace(state / name)
    return authority


def trial(made: Fleet, name: str, act: Callable[[Fleet], str], *, rate: float) -> dict[str, Any]:
    """Run one trial under load; return what the callers saw."""
    seen: Seen
    with made.callers(rate=rate).calling() as seen:
        time.sleep(2.0)
        done = act(made)
        time.sleep(3.0)
    return {"trial": name, "done": done, **seen.summary()}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the trials."""
    arguments = parser(__name__, __doc__)
    arguments.add_argument("--rate", type=float, default=100.0, help="requests per second of all callers [100]")
    arguments.add_argument(
        "--write-docs", action="store_true", help="keep the result, and write the table of docs/rolling.md"
    )
    options = arguments.parse_args(argv)
    results: list[dict[str, Any]] = []

    def note(name: str, act: Callable[[Fleet], str]) -> None:
        results.append(trial(made, name, act, rate=options.rate))
        tell(results[-1])

    with (
        tempfile.TemporaryDirectory(prefix="rolling-") as temporary,
        fleet(Path(temporary) / "fleet", say=narrator(), **AGE) as made,
    ):
        made.together(made.start_triton, made.start_triton)
        made.together(made.start_gateway, made.start_gateway)
        for name, act in (
            ("gateway image", gateway_image), ("configuration", configuration), ("Triton image", triton_image),
            ("node drain", node_drain), ("lost Triton", lost_triton),
        ):  # fmt: skip
            note(name, act)
        while made.gateways:
            made.end_gateway(made.gateways[0])
        authority = _issue(made.state, trustme.CA())
        made.tls = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())
        made.settings |= {
            "TRITON_GATEWAY_TLS_CERTIFICATE": str(made.state / "cert.pem"),
            "TRITON_GATEWAY_TLS_KEY": str(made.state / "key.pem"),
        }
        made.together(made.start_gateway, made.start_gateway)
        note("certificates", certificates)
    if options.write_docs:
        save("rolling", results)
        put(DOCS / "rolling.md", "rolling", shown(results))
    return 1 if any(result["failed"] for result in results) else 0


def shown(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of the page."""
    rows = [["what", "done", "requests", "failed", "p50", "p99"]]
    rows += [
        [r["trial"], r["done"], f"{r['requests']:,}", str(r["failed"]), f"{r['p50_ms']:g} ms", f"{r['p99_ms']:g} ms"]
        for r in results
    ]
    return table(rows, align=["---", "---", *["---:"] * 4])
