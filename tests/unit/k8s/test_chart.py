"""The chart as a whole: what two values make of it, its conventions, and what it refuses."""

from __future__ import annotations

import re

import pytest
import yaml

from tests.kube_tools import CHART, YOURS, plain, rendered

TRIAL = ("--set=image.registry=registry.example.com/ml", "--set=controlplane.enabled=true")


@pytest.mark.parametrize("values", [TRIAL, YOURS], ids=["trial", "yours"])
def test_two_values_are_enough_and_need_no_operator_and_no_secret_but_clearmls(values: tuple[str, ...]) -> None:
    """A metrics-server scales both tiers; what nobody named is made."""
    objects = plain(*values)
    assert {each["apiVersion"].partition("/")[0] for each in objects} <= {
        "v1", "apps", "autoscaling", "policy", "networking.k8s.io",
    }  # fmt: skip
    made = {each["metadata"]["name"]: {*each["data"]} for each in objects if each["kind"] == "Secret"}
    keys = {"CLEARML_API_ACCESS_KEY", "CLEARML_API_SECRET_KEY"}
    assert made == {"triton-gateway-triton-key": {"key"}} | (
        {"triton-gateway-clearml": keys} if values == TRIAL else {}
    )
    scaled = {each["metadata"]["name"] for each in objects if each["kind"] == "HorizontalPodAutoscaler"}
    assert {"triton-gateway", "triton"} == scaled
    said = yaml.safe_dump(objects)
    assert "nvidia.com/gpu" not in said
    named = {*re.findall(r"secretName: (\S+)", said), *re.findall(r"secretKeyRef:\n +key: \S+\n +name: (\S+)", said)}
    assert named == {*made, *(() if values == TRIAL else ("clearml-credentials",))}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ((), "clearml.apiHost, clearml.credentialsSecret: set"), (YOURS[:1], "clearml.credentialsSecret: the Secret"),
        (("--set=clearml.apiHost=https://clearml.example", *YOURS[1:]), "clearml.filesHost: set it"),
    ],
)  # fmt: skip
def test_what_is_missing_or_unknown_is_named(values: tuple[str, ...], said: str) -> None:
    """Before anything is made."""
    with pytest.raises(AssertionError, match=re.escape(said)):
        plain(*values)


def test_the_other_addresses_of_a_clearml_server_follow_from_its_api() -> None:
    """As its own images and its own chart name them."""
    for api, files, web in (
        ("https://api.clearml.example", "https://files.clearml.example", "https://app.clearml.example"),
        ("http://clearml-apiserver.c:8008", "http://clearml-fileserver.c:8081", "http://clearml-webserver.c:8080"),
    ):
        [found] = [one["data"] for one in rendered(f'--set-json=clearml.apiHost="{api}"') if one["kind"] == "ConfigMap"]
        assert (api, files, web) == tuple(found[f"CLEARML_{name}_HOST"] for name in ("API", "FILES", "WEB"))


def test_names_and_labels_are_those_of_every_chart() -> None:
    """A parent chart may define `name`: ours have a prefix. Labels of pods never change, so that selectors can stay."""
    for path in (CHART / "templates").iterdir():
        defined = re.findall(r'(?:define|include) "([^"]+)"', path.read_text())
        assert [] == [name for name in defined if not name.startswith("triton-gateway.")], path.name
    for each in plain(*TRIAL, release="a"):
        assert "a" == each["metadata"]["labels"]["app.kubernetes.io/instance"]
        if each["kind"] == "Deployment":
            assert "helm.sh/chart" not in each["spec"]["template"]["metadata"]["labels"]
