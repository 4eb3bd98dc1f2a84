"""One run: starts Triton, the control plane and the systems, measures the cells round by round, and saves each at once.

A cell that is already saved under the run's name is not measured again, so an interrupted run continues.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.plan import Scenario
from benchmarks.peers.registered import register
from benchmarks.peers.systems import OTHER_CORE, SERVER_CORE, SYSTEMS, Bench, NotAvailable, Running
from benchmarks.shared import machine
from benchmarks.shared.backends import BACKENDS, Triton, mean_batch
from benchmarks.shared.command import ROOT, Say
from benchmarks.shared.corpus import Corpus
from benchmarks.shared.results import facts_of
from deploy.laptop.demo.minilm import bundle, packaged_model
from tests import processes
from tests.control_planes import control_plane
from tests.stock import Client
from tests.tiny import summed

_TEXTS = {"short": 20_000, "long": 4_000, "mixed": 8_000}
_FIRST_WARM_UP_S = 5.0
"""Seconds of warm-up after a start, and with texts of a kind that is new to a server: caches fill as in production."""
_WARM_UP_S = 1.0
_CLASSIFIER = {
    "architectures": ["BertForSequenceClassification"], "model_type": "bert", "vocab_size": 30522, "pad_token_id": 0,
    "max_position_embeddings": 512, "hidden_size": 384, "num_labels": 2,
    "id2label": {"0": "NEGATIVE", "1": "POSITIVE"}, "label2id": {"NEGATIVE": 0, "POSITIVE": 1},
}  # fmt: skip
_SHOWN = (
    "clearml", "clearml-serving", "fastapi", "grpcio", "kserve", "numpy",
    "onnxruntime", "orjson", "py-spy", "tokenizers", "torch", "transformers", "tritonclient", "uvicorn", "uvloop",
)  # fmt: skip


def run(scenarios: Sequence[Scenario], *, state: Path, name: str, command: str, say: Say) -> dict[str, Any]:
    """Measure all scenarios and return the run as plain values; cells are in ``state/runs/name``."""
    state.mkdir(parents=True, exist_ok=True)
    folder = state / "runs" / name
    folder.mkdir(parents=True, exist_ok=True)
    missing: dict[str, str] = {}
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        bench = bring_up(stack, scenarios, state, say)
        facts = _facts(bench, scenarios, command)
        (folder / "facts.json").write_text(json.dumps(facts, indent=1) + "\n")
        total = sum(len(s.systems) * s.rounds for s in scenarios)
        done = 0
        for backend in dict.fromkeys(s.backend for s in scenarios):
            mine = [s for s in scenarios if s.backend == backend]
            with contextlib.ExitStack() as started:
                running: dict[str, Running] = {}
                for scenario in mine:
                    for round_ in range(scenario.rounds):
                        for system in scenario.systems:
                            done += 1
                            path = folder / f"{scenario.name}-{system}-{round_}.json"
                            if path.exists() or f"{backend}/{system}" in missing:
                                continue
                            try:
                                if system not in running:
                                    running[system] = start(bench, started, backend, system)
                                cell = measure_cell(bench, running[system], scenario, system, round_)
                            except (NotAvailable, processes.ServerFailed, ConnectionError, OSError) as error:
                                missing[f"{backend}/{system}"] = str(error)
                                say(f"{backend}: {system} is not measured: {error}")
                                continue
                            path.write_text(json.dumps(cell) + "\n")
                            say(f"[{done}/{total}, {time.monotonic() - began:.0f} s] {_line(cell)}")
        (folder / "missing.json").write_text(json.dumps(missing, indent=1) + "\n")
    return collect(folder)


def collect(folder: Path) -> dict[str, Any]:
    """Return everything saved of a run."""

    def read(path: Path) -> Any:
        return json.loads(path.read_text()) if path.exists() else {}

    aside = {"facts.json", "missing.json"}
    return {
        "facts": read(folder / "facts.json"),
        "missing": read(folder / "missing.json"),
        "cells": [read(path) for path in sorted(folder.glob("*.json")) if path.name not in aside],
    }


def bring_up(stack: contextlib.ExitStack, scenarios: Sequence[Scenario], state: Path, say: Say) -> Bench:
    """Start what every system needs; stopped with ``stack``."""
    state.mkdir(parents=True, exist_ok=True)
    lock = stack.enter_context((state / "lock").open("w"))
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise processes.ServerFailed(f"another benchmark runs in {state}; wait for it, or give --state-dir") from None
    backends = [BACKENDS[name] for name in dict.fromkeys(s.backend for s in scenarios)]
    bundles = _bundles(state, [backend.name for backend in backends])
    say("starting the embedded control plane and Triton")
    registry = state / "registry"
    shutil.rmtree(registry, ignore_errors=True)
    server = stack.enter_context(control_plane(registry / "controlplane"))
    os.sched_setaffinity(server.process.pid, [OTHER_CORE])
    client = Client(server, registry, TOKENIZERS_PARALLELISM="false", no_proxy="127.0.0.1,localhost")
    triton = Triton(state / "triton")
    stack.callback(triton.stop)
    triton.start()
    triton.pin([OTHER_CORE])
    registered = register(client, backends, bundles, say)
    return Bench(state, triton, client, registered, bundles, say)


def _bundles(state: Path, names: Sequence[str]) -> dict[str, Path]:
    source = packaged_model()
    classifier = state / "bundles" / "classifier"
    classifier.mkdir(parents=True, exist_ok=True)
    for file in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        if (source / file).exists():
            shutil.copyfile(source / file, classifier / file)
    (classifier / "config.json").write_text(json.dumps(_CLASSIFIER))
    encoder = state / "bundles" / "encoder"
    shutil.copytree(classifier, encoder, dirs_exist_ok=True)
    (encoder / "config.json").write_text(json.dumps({**_CLASSIFIER, "architectures": ["BertModel"]}))
    classifiers = dict.fromkeys(("instant", "gpu", "large"), classifier)
    found = {**classifiers, "vectors": encoder}
    if "static" in names:
        found["static"] = _static(encoder, state / "bundles" / "static")
    if "minilm" in names:
        found["minilm"] = bundle(state / "bundles")
    return found


def _static(source: Path, folder: Path) -> Path:
    """Write an encoder with the texts of ``source``, once: the mean of its tokens' vectors, of length 1."""
    if (folder / "model.onnx").is_file():
        return folder
    shutil.copytree(source, folder, dirs_exist_ok=True)
    config = json.loads((source / "config.json").read_text())
    config |= {"hidden_size": 384, "num_hidden_layers": 1, "num_attention_heads": 1}  # others read them all
    (folder / "config.json").write_text(json.dumps(config))
    vectors = np.random.default_rng(1).normal(size=(config["vocab_size"], 384)).astype(np.float32)
    summed(folder / "model.onnx", vectors, "sentence_embedding", is_normal=True)
    return folder


def start(bench: Bench, stack: contextlib.ExitStack, backend: str, system: str) -> Running:
    """Start a system and return when it has answered; stopped with ``stack``."""
    bench.say(f"{backend}: starting {system}")
    running = SYSTEMS[system].start(bench, BACKENDS[backend])
    stack.callback(running.stop)
    body = running.body("A first question, to be sure that it answers.")
    if running.server is not None:
        running.server.wait_for(running.url, body)
    else:
        processes.ask(running.url, body)
    return running


def _bodies(state: Path, kind: str, running: Running, system: str) -> Path:
    """Write the bodies of a kind of text in a system's form, once; one per line."""
    path = state / "bodies" / f"{kind}-{system}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".part")
    aside.write_bytes(b"\n".join(running.body(text) for text in Corpus(seed=1).texts(kind, _TEXTS[kind])) + b"\n")
    aside.replace(path)
    return path


_prepared: dict[tuple[str, str, str], Path] = {}


def prepare_bodies(bench: Bench, running: Running, scenario: Scenario, system: str) -> Path:
    """Return the file of bodies for a cell, written once per run."""
    key = (scenario.texts, scenario.backend, system)
    if key not in _prepared:
        _prepared[key] = _bodies(bench.state, scenario.texts, running, f"{scenario.backend}-{system}")
    return _prepared[key]


def measure_cell(bench: Bench, running: Running, scenario: Scenario, system: str, round_: int) -> dict[str, Any]:
    """Load a running system once with a scenario, after a warm-up; return its costs and how it answered."""
    bodies, triton = prepare_bodies(bench, running, scenario, system), bench.triton
    triton.pin(running.triton_cores)
    if bodies not in running.seen:
        running.seen.add(bodies)
        _load(running.url, bodies, replace(scenario, connections=64, rate=0.0), _FIRST_WARM_UP_S)
    _load(running.url, bodies, scenario, _WARM_UP_S)
    before, pids = triton.statistics(), running.pids
    own, theirs = machine.cpu_seconds(pids), machine.cpu_seconds([triton.pid])
    outcome = _load(running.url, bodies, scenario, scenario.seconds, begin=(round_ + 1) * 3571)
    own, theirs = machine.cpu_seconds(pids) - own, machine.cpu_seconds([triton.pid]) - theirs
    requests = max(1, outcome["requests"])
    return {
        "system": system, "backend": scenario.backend, "texts": scenario.texts, "rate": scenario.rate,
        "connections": scenario.connections, "round": round_, **outcome,
        "own_us": own / requests * 1e6 if pids else 0.0,
        "triton_us": theirs / requests * 1e6 if SYSTEMS[system].uses_triton else 0.0,
        "own_cores": own / outcome["seconds"],
        "rss_mb": machine.rss_mb(pids or [triton.pid]),
        "batch": mean_batch(before, triton.statistics(), running.models),
    }  # fmt: skip


def _load(url: str, bodies: Path, scenario: Scenario, seconds: float, *, begin: int = 0) -> dict[str, Any]:
    return start_load(url, bodies, scenario, seconds, begin=begin)()


def start_load(
    url: str, bodies: Path, scenario: Scenario, seconds: float, *, begin: int = 0
) -> Callable[[], dict[str, Any]]:
    """Start the load of a scenario on its core. The returned function waits for it and returns what it saw."""
    argv = [
        sys.executable, "-m", "benchmarks.shared.load", url, "--bodies", str(bodies), "--connections",
        str(scenario.connections), "--seconds", str(seconds), "--rate", str(scenario.rate), "--start", str(begin),
        "--client", scenario.client,
    ]  # fmt: skip
    process = subprocess.Popen(
        processes.on_cores(argv, [OTHER_CORE]), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env=dict(os.environ),
    )  # fmt: skip

    def finish() -> dict[str, Any]:
        try:
            out, errors = process.communicate(timeout=seconds + 60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise processes.ServerFailed(f"the load on {url} did not end") from None
        if process.returncode:
            raise processes.ServerFailed(f"the load failed: {errors.strip().splitlines()[-1:]}")
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        return found

    return finish


def _line(cell: dict[str, Any]) -> str:
    return (
        f"{cell['backend']} {cell['texts']} c{cell['connections']} {cell['system']:<15} {cell['rps']:7.0f}/s  "
        f"own {cell['own_us']:6.1f} µs  triton {cell['triton_us']:6.1f} µs  p50 {cell['p50_ms']:6.2f} ms  "
        f"p99 {cell['p99_ms']:7.2f} ms  batch {cell['batch']:4.1f}  errors {cell['errors']}"
    )


def _facts(bench: Bench, scenarios: Sequence[Scenario], command: str) -> dict[str, Any]:
    return {
        "command": command,
        **facts_of(min(s.rounds for s in scenarios)),
        "python": sys.version.split()[0],
        "triton": bench.triton.version(),
        "gpu": "none on this machine" if not Path("/dev/nvidia0").exists() else "present, not used",
        "packages": dict(_packages(bench)),
        "tokens": _token_counts(bench),
        "backends": {n: asdict(BACKENDS[n]) for n in dict.fromkeys(s.backend for s in scenarios)},
        "scenarios": [asdict(s) for s in scenarios],
        "cores_used": {"server under test": SERVER_CORE, "Triton, load and registry": OTHER_CORE},
    }


def _packages(bench: Bench) -> Iterator[tuple[str, dict[str, str]]]:
    yield "gateway", _versions(Path(sys.executable))
    for name in ("clearml", "kserve"):
        for python in sorted((bench.state / "environments").glob(f"{name}-*/bin/python")):
            yield name, _versions(python)


def _token_counts(bench: Bench) -> dict[str, float]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(bench.bundles["instant"] / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    found = {}
    for kind in _TEXTS:
        texts = Corpus(seed=1).texts(kind, 1000)
        found[kind] = sum(len(e.ids) for e in tokenizer.encode_batch_fast(texts)) / len(texts)
    return found


def _versions(executable: Path) -> dict[str, str]:
    """Return the versions of the packages that matter in the environment of ``executable``."""
    program = (
        "import importlib.metadata as m,json,sys\n"
        "found={}\n"
        "for n in sys.argv[1:]:\n"
        "    try: found[n]=m.version(n)\n"
        "    except m.PackageNotFoundError: pass\n"
        "print(json.dumps(found))"
    )
    done = subprocess.run(
        [str(executable), "-I", "-c", program, *_SHOWN], capture_output=True, text=True, timeout=60, check=True
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found
