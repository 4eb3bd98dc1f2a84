"""A hook that writes to the gateway's socket itself always gets an error of the gateway."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]

FORGER = '''
import json, os, pickle, struct, sys
import numpy as np

class Numbers(str):
    """A dtype of objects that says it holds none: what is read through it are addresses the sender chose."""
    def __reduce__(self):
        return np.dtype, ("V8", False, True), (3, "|", None, ("a",), {"a": (np.dtype("O"), 0)}, 8, 1, 0)

class Array:
    def __reduce__(self):
        from numpy.core.numeric import _frombuffer
        return _frombuffer, (b"A" * 8, Numbers(), (1,), "C")

def pickled_array():
    main = pickle.dumps(Array(), protocol=4)
    head = struct.pack("<2Q", 1, len(main))
    return head + bytes(-len(head) % 64) + main

def frame(head, payload):
    text = json.dumps(head).encode()
    return struct.pack("<II", len(text), len(payload)) + text + payload

class Preprocess:
    def preprocess(self, body, state, s=None):
        payload = pickled_array()
        job = {"is": "stage", "statistics": {}}
        for number in range(1, 9):
            head = {"k": "done", "id": number, "ns": [0, 0, 0], "jobs": [job], "sizes": [len(payload), 0]}
            os.write(int(sys.argv[1]), frame(head, payload))
        return 1
'''

GATEWAY = """
import asyncio, sys, time
from pathlib import Path
from gateway.handlers.tensors import TritonCall
from gateway.errors import GatewayError
from gateway.hooks.pool import HookPool, PoolLimits
from gateway.hooks.process import Program
from gateway.triton.port import TensorInfo

async def main():
    pool = HookPool(Program("h", "triton", Path(sys.argv[1]), None, {}), PoolLimits(), None)
    await pool.start()
    try:
        until = asyncio.get_running_loop().time() + 300
        reply = await pool.run(["preprocess"], [({}, None)], until, is_answer=False)
        [outcome] = reply.outcomes
        if outcome.error is not None:
            raise outcome.error
        TritonCall(None, "m", (TensorInfo("x", "float32", (-1,)),), ()).tensors(outcome.answer)
    except GatewayError as error:
        print(type(error).__name__, error)
    finally:
        await pool.close()
asyncio.run(main())
"""


def test_a_forged_dtype_does_not_crash_the_gateway(tmp_path: Path) -> None:
    """numpy trusts a dtype's state, which could create an array of chosen memory addresses in the gateway."""
    code = tmp_path / "hook.py"
    code.write_text(FORGER)
    worker = subprocess.run(
        [sys.executable, "-c", GATEWAY, str(code)], capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert 0 == worker.returncode, worker.stderr[-2000:]
    assert worker.stdout.startswith("HookFailed"), worker.stdout
