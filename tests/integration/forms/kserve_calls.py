"""Calls of KServe's own client, made in its own environment: prints one JSON object. Arguments: URL, gRPC address."""

from __future__ import annotations

import asyncio
import json
import sys

from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig


def request(model: str) -> InferRequest:
    """One text."""
    text = InferInput(name="text", shape=[2, 1], datatype="BYTES", data=["good film", "bad"])
    return InferRequest(model_name=model, infer_inputs=[text], request_id="k1")


def labels(response: object) -> list[str]:
    """The texts of the output `label`."""
    output = next(o for o in response.outputs if o.name == "label")  # type: ignore[attr-defined]
    return [item.decode() if isinstance(item, bytes) else item for item in output.as_numpy().ravel().tolist()]


async def main(url: str, address: str) -> None:
    """Every call a KServe user makes."""
    found: dict[str, object] = {}
    v2 = InferenceRESTClient(RESTConfig(protocol="v2", timeout=20))
    found["live"] = await v2.is_server_live(url)
    found["ready"] = await v2.is_server_ready(url)
    found["model_ready"] = await v2.is_model_ready(url, "live")
    found["rest"] = labels(await v2.infer(url, request("live"), model_name="live"))
    await v2.close()
    v1 = InferenceRESTClient(RESTConfig(protocol="v1", timeout=20))
    answer = await v1.infer(url, {"instances": ["good film", "bad"]}, model_name="live")
    found["v1"] = [prediction["label"] for prediction in answer["predictions"]]
    found["v1_ready"] = await v1.is_model_ready(url, "live")
    await v1.close()
    rpc = InferenceGRPCClient(url=address, timeout=20)
    found["rpc_live"] = await rpc.is_server_live()
    found["rpc_model_ready"] = await rpc.is_model_ready("live")
    found["rpc"] = labels(await rpc.infer(request("live")))
    await rpc.close()
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
