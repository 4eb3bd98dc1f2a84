"""Decoding of the serving Task: ClearML's forms, and faults that affect only their entry."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from gateway.spec import ArtifactRef, Content, ModelRecord, ServingTask, decode, normalize_url, triton_model_name

ENDPOINTS = """
test_onnx/1 {
  engine_type = "triton"
  serving_url = "test_onnx"
  model_id = "bd81"
  version = "1"
  preprocess_artifact = "py_code_test_onnx_1"
  input_size = [[1, 28, 28]]
  input_type = ["float32"]
  input_name = ["INPUT__0"]
  output_size = [[-1, 10]]
  output_type = ["float32"]
  output_name = ["OUTPUT__0"]
  auxiliary_cfg { platform = "\\"onnxruntime_onnx\\"", max_batch_size = 16 }
}
"a.b" { engine_type = "custom", serving_url = "a.b", preprocess_artifact = "py_code_test_onnx_1" }
"""


CODE = ArtifactRef("py_code_test_onnx_1", "http://f/x.py", "ab", is_archive=False)


def task(**sections: str) -> ServingTask:
    """A serving Task with these configuration sections."""
    return ServingTask("t1", "svc", sections, {"triton_grpc_server": "triton:8001"}, {CODE.key: CODE})


def test_endpoints_are_decoded_with_clearmls_field_names() -> None:
    """Tensors, auxiliary configuration, preprocess code and names with dots."""
    spec = decode(task(endpoints=ENDPOINTS))
    endpoint = spec.endpoints["test_onnx/1"]
    assert ("test_onnx", "1", "triton", "bd81") == (
        endpoint.endpoint, endpoint.version, endpoint.engine, endpoint.model_id,
    )  # fmt: skip
    assert ("INPUT__0", "float32", (1, 28, 28)) == (
        endpoint.inputs[0].name, endpoint.inputs[0].dtype, endpoint.inputs[0].shape,
    )  # fmt: skip
    assert {"platform": '"onnxruntime_onnx"', "max_batch_size": 16} == endpoint.auxiliary_pairs
    assert "http://f/x.py" == endpoint.preprocess.uri if endpoint.preprocess else None
    assert "a.b" in spec.endpoints
    assert () == spec.faults
    assert {"triton_grpc_server": "triton:8001"} == spec.settings


@pytest.mark.parametrize(
    ("section", "text", "subject", "words"),
    [
        ("endpoints", 'x { engine_type = "magic", serving_url = "x" }', "endpoint x", "engine 'magic'"),
        ("endpoints", 'x { engine_type = "triton", preprocess_artifact = "no" }', "endpoint x", "not attached"),
        ("endpoints", 'x { engine_type = "triton", input_name = ["a", "b"], input_type = ["int64"], input_size = [1] }',
         "endpoint x", "2 input names, 1 types"),
        ("endpoints", 'x { engine_type = "triton", input_name = ["a"], input_type = ["int64"], input_size = [["q"]] }',
         "endpoint x", "invalid literal for int"),
        ("endpoints", 'x { engine_type = "triton", auxiliary_cfg { gateway = "x" } }', "endpoint x", "takes names"),
        ("endpoints", 'x { engine_type = "triton", auxiliary_cfg { gateway { unload_after = 5 } } }', "endpoint x",
         "too short"),
        ("endpoints", "x = 5", "endpoints x", "not a block"), ("canary", 'x { weights = ["q"] }', "canary x", "float"),
        ("metric_logging", "x { metrics = [1] }", "metrics x", "cannot be read"),
        ("metric_logging", "x { metrics { a = 1 } }", "metrics x", "cannot be read"),
        ("metric_logging", 'x { log_frequency = "often" }', "metrics x", "float: 'often'"),
        ("model_monitoring", 'x { engine_type = "triton", max_versions = "q" }', "auto-update x", "'q'"),
    ],
)  # fmt: skip
def test_a_broken_entry_is_a_fault_and_the_others_are_decoded(
    section: str, text: str, subject: str, words: str
) -> None:
    """One wrong entry never hides the others."""
    fine = 'fine { engine_type = "triton", model_id = "m", serving_url = "fine" }'
    sections = {"endpoints": fine, section: f"{text}\n{fine}" if section == "endpoints" else text}
    spec = decode(task(**sections))
    assert (["fine"], {}, {}, {}) == (list(spec.endpoints), spec.canaries, spec.metrics, spec.monitoring)
    assert [(subject, True)] == [(fault.subject, words in fault.message) for fault in spec.faults]


def test_section_that_does_not_parse_is_a_fault_of_its_own() -> None:
    """The other sections are still read."""
    spec = decode(task(endpoints="br{ace", canary='c { endpoint = "c", weights = [1.0], load_endpoints = ["e"] }'))
    assert ["section endpoints"] == [f.subject for f in spec.faults] == [f.subject for f in spec.unreadable]
    assert ["c"] == list(spec.canaries)


def test_a_static_endpoint_overrides_the_auto_update_one() -> None:
    """As in clearml-serving, `model add` overrides an entry of auto-update."""
    entry = 'e/1 {{ engine_type = "triton", serving_url = "e", version = "1", model_id = "{}" }}'
    spec = decode(task(model_monitoring_eps=entry.format("auto"), endpoints=entry.format("static")))
    assert "static" == spec.endpoints["e/1"].model_id


def test_only_a_change_of_the_desired_state_is_a_new_revision() -> None:
    """Not a renamed service or a comment, but a changed endpoint, or other code under the same name."""
    one = decode(task(endpoints=ENDPOINTS))
    assert one.revision == decode(replace(task(endpoints=ENDPOINTS), name="renamed")).revision
    assert one.revision != decode(task(endpoints=ENDPOINTS.replace("bd81", "ffff"))).revision
    changed = replace(task(endpoints=ENDPOINTS), artifacts={CODE.key: replace(CODE, sha256="cd")})
    assert one.revision != decode(changed).revision


def test_urls_never_share_a_triton_name() -> None:
    """In clearml-serving a/1 and a_1 collide. Here they do not, a new model or address has a new name, and
    each is a plain one."""
    entry = '"{u}" {{ engine_type = "triton", serving_url = "{u}", model_id = "m" }}\n'
    spec = decode(task(endpoints=entry.format(u="a/1") + entry.format(u="a_1") + entry.format(u="a-1")))
    model = ModelRecord("m", "n", "http://f/m.onnx", "onnx")
    names = {triton_model_name(e, model) for e in spec.endpoints.values()}
    assert 3 == len(names)
    for other in (replace(model, id="m2"), replace(model, uri="http://f/m2.onnx")):
        assert triton_model_name(spec.endpoints["a/1"], model) != triton_model_name(spec.endpoints["a/1"], other)
    assert "a.b-c" == triton_model_name(replace(spec.endpoints["a/1"], url="../a.b/\\é c"), model).rpartition("-")[0]


def test_urls_are_joined_without_outer_slashes() -> None:
    """A leading slash in the CLI names the same endpoint."""
    assert ["a/b/1", "a", "a/1"] == [normalize_url("/a/b/", "1"), normalize_url("a", ""), normalize_url("a", "/1")]


def test_every_gateway_reports_what_the_controller_found_in_the_file_store() -> None:
    """Other bytes than the recorded ones, or models that came to the address before anybody looked; only of models
    that are served. What cannot be read is left out.
    """
    uri, served = "file:///store.bin", 'e { engine_type = "triton", model_id = "m", serving_url = "e" }'

    def faults(endpoints: str = served, **more: object) -> str:
        content = asdict(Content("m", "film", uri, "a" * 64)) | more
        records = {"content_hash": {"m": content, "x": {"sha256": 1}}}
        return " ".join(
            f"{fault.subject} {fault.message}"
            for fault in decode(replace(task(endpoints=endpoints), records=records)).faults
        )

    assert "" == faults()
    found = "model film (m) was registered with sha256 aaaaaaaaaaaa…, the file store now gives cccc"
    assert found in faults(found="c" * 64)
    newer = tuple(f"m{number}" for number in range(6))
    assert f"m0, m1, m2, m3, m4 and more are all at {uri}" in faults(newer=newer)
    assert "" == faults("", newer=newer)
