"""Rules of `tasks.edit`: no concurrent change is lost, no section that clients parse becomes unreadable."""

# ruff: noqa: D103 - a test's name states its rule

from typing import Any

from deploy.controlplane.edits import EMPTY, SERVING_TAG, Edit, Writer
from deploy.controlplane.reads import ReadLog
from deploy.tools import sections

CLI = "clearml-serving-1.3.5, clearml-2.1.12"
SDK = "clearml-2.1.12"


class Client:
    """A client process: reads the stored Task, writes whole fields."""

    def __init__(self, registry: "Registry", name: str, agent: str = CLI) -> None:
        self.registry = registry
        self.writer = Writer(session=name, client=agent)

    def read(self) -> dict[str, Any]:
        task = self.registry.task
        self.registry.reads.saw(self.writer.session, task["id"], self.registry.rev, task)
        return task

    def write(self, **fields: Any) -> list[str]:
        edit = Edit(
            task=self.registry.task,
            writer=self.writer,
            reads=self.registry.reads,
            pin=lambda uri, sha: f"{uri}@{sha}" if sha else uri,
        )
        for name, value in fields.items():
            {
                "configuration": edit.configuration,
                "hyperparams": edit.hyperparams,
                "runtime": edit.runtime,
                "execution": edit.execution,
                "models": edit.models,
            }[name](value)
        self.registry.store(edit.fields)
        return edit.notes

    def set_section(self, name: str, text: str) -> list[str]:
        """What the SDK does: read the Task again, replace one section, send all of them."""
        configuration = dict(self.read().get("configuration") or {})
        return self.write(configuration=configuration | {name: {"name": name, "value": text}})


class Registry:
    """The stored Task and the server's memory of reads."""

    def __init__(self, **fields: Any) -> None:
        self.reads = ReadLog()
        self.rev = 1
        self.task: dict[str, Any] = {"id": "t", "system_tags": [SERVING_TAG], **fields}

    def store(self, fields: dict[str, Any]) -> None:
        self.task = self.task | fields
        self.rev += 1

    def client(self, name: str, agent: str = CLI) -> Client:
        return Client(self, name, agent)

    def section(self, name: str) -> dict[str, Any]:
        return sections.parse(self.task["configuration"][name]["value"])


def configured(**texts: str) -> dict[str, Any]:
    return {name: {"name": name, "value": text} for name, text in texts.items()}


def test_two_clis_that_add_endpoints_at_once_both_succeed() -> None:
    """Each writes all four sections from the copy it loaded at its start, reading the Task again before each write."""
    registry = Registry(configuration=configured(endpoints=EMPTY, canary=EMPTY))
    one, two = registry.client("one"), registry.client("two")
    one.read()
    two.read()
    one.set_section("endpoints", "a { v = 1 }")
    two.set_section("endpoints", "b { v = 2 }")
    one.set_section("canary", EMPTY)
    two.set_section("canary", EMPTY)
    assert registry.section("endpoints") == {"a": {"v": 1}, "b": {"v": 2}}
    assert registry.section("canary") == {}


def test_canary_added_meanwhile_is_not_undone_by_a_cli_that_rewrites_all_sections() -> None:
    registry = Registry(configuration=configured(endpoints=EMPTY, canary=EMPTY))
    one, two = registry.client("one"), registry.client("two")
    one.read()
    two.read()
    two.set_section("canary", "c { weights = [1] }")
    one.set_section("endpoints", "a { v = 1 }")
    one.set_section("canary", EMPTY)
    assert registry.section("canary") == {"c": {"weights": [1]}}
    assert registry.section("endpoints") == {"a": {"v": 1}}


def test_endpoint_removed_by_one_cli_stays_removed_when_another_adds_one() -> None:
    registry = Registry(configuration=configured(endpoints="a { v = 1 }"))
    one, two = registry.client("one"), registry.client("two")
    one.read()
    two.read()
    one.set_section("endpoints", EMPTY)
    two.set_section("endpoints", "a { v = 1 }\nb { v = 2 }")
    assert registry.section("endpoints") == {"b": {"v": 2}}


def test_session_may_delete_what_it_has_just_seen() -> None:
    """A script that reads, removes an entry and writes means it, although it had read an older state before."""
    registry = Registry(configuration=configured(endpoints=EMPTY))
    script = registry.client("script", SDK)
    script.read()
    other = registry.client("cli")
    other.read()
    other.set_section("endpoints", "a { v = 1 }")
    script.read()
    script.set_section("endpoints", EMPTY)
    assert registry.section("endpoints") == {}


def test_client_writes_twice_from_its_memory_without_undoing_others() -> None:
    registry = Registry(configuration=configured(endpoints=EMPTY))
    one, two = registry.client("one"), registry.client("two")
    one.read()
    two.read()
    one.set_section("endpoints", "a { v = 1 }")
    two.set_section("endpoints", "b { v = 1 }")
    one.set_section("endpoints", "a { v = 1 }\nc { v = 1 }")
    assert registry.section("endpoints").keys() == {"a", "b", "c"}


def test_text_is_stored_to_the_byte_without_concurrent_changes() -> None:
    registry = Registry(configuration=configured(endpoints=EMPTY))
    client = registry.client("one")
    client.read()
    client.set_section("endpoints", "# mine\na {v=1}")
    assert registry.task["configuration"]["endpoints"]["value"] == "# mine\na {v=1}"


def test_write_of_an_unknown_session_is_taken_as_it_is() -> None:
    """After a restart nothing is known of a client's reads; a stock server behaves like this always."""
    registry = Registry(configuration=configured(endpoints="a { v = 1 }", canary="c { v = 1 }"))
    registry.client("unknown").write(configuration=configured(endpoints="b { v = 1 }"))
    assert registry.section("endpoints") == {"b": {"v": 1}}
    assert registry.task["configuration"].keys() == {"endpoints"}


def test_unreadable_name_is_stored_in_a_readable_form() -> None:
    registry = Registry(configuration=configured(endpoints="a {\n  v = 1\n}"))
    client = registry.client("one")
    client.read()
    notes = client.set_section("endpoints", "a {\n  v = 1\n}\nкир {\n  v = 2\n}")
    assert registry.section("endpoints") == {"a": {"v": 1}, "кир": {"v": 2}}
    assert notes == []


def test_hopeless_text_is_refused_the_previous_one_kept_and_the_reason_told() -> None:
    registry = Registry(configuration=configured(endpoints="a { v = 1 }"))
    client = registry.client("one")
    client.read()
    notes = client.set_section("endpoints", 'a {\n  v = 1\n}\nquo"te {\n  v = 2\n}')
    assert registry.section("endpoints") == {"a": {"v": 1}}
    assert len(notes) == 1
    assert "'endpoints' was not accepted" in notes[0]


def test_hopeless_first_text_leaves_an_empty_section() -> None:
    registry = Registry()
    notes = registry.client("one").write(configuration=configured(endpoints="a {"))
    assert registry.section("endpoints") == {}
    assert "left empty" in notes[0]


def test_free_text_of_other_sections_and_tasks_is_never_touched() -> None:
    """Configuration objects of training Tasks may be YAML or anything else."""
    registry = Registry(configuration={}, system_tags=["development"])
    registry.client("one").write(configuration=configured(endpoints="a: {", notes="not: [hocon"))
    assert registry.task["configuration"]["endpoints"]["value"] == "a: {"
    serving = Registry(configuration={})
    serving.client("one").write(configuration=configured(notes="not: [hocon"))
    assert serving.task["configuration"]["notes"]["value"] == "not: [hocon"


def test_other_sections_merge_as_a_whole() -> None:
    registry = Registry(configuration=configured(yaml="x", other="y"))
    one, two = registry.client("one", SDK), registry.client("two", SDK)
    one.read()
    two.read()
    one.write(configuration=configured(yaml="x1", other="y"))
    two.write(configuration=configured(yaml="x", other="y2"))
    assert {name: item["value"] for name, item in registry.task["configuration"].items()} == {
        "yaml": "x1",
        "other": "y2",
    }


def test_section_left_out_by_its_reader_is_deleted() -> None:
    registry = Registry(configuration=configured(a="x", b="y"))
    client = registry.client("one", SDK)
    client.read()
    client.write(configuration=configured(a="x"))
    assert registry.task["configuration"].keys() == {"a"}


def test_artifacts_added_meanwhile_survive_a_whole_execution() -> None:
    """The CLI sends back all artifacts it knows of after each upload."""
    registry = Registry(execution={"artifacts": [], "model_desc": {"kept": 1}})
    one, two = registry.client("one"), registry.client("two")
    one.read()
    two.read()
    one.write(execution={"artifacts": [{"key": "a", "uri": "u1", "hash": "h1"}]})
    two.write(execution={"artifacts": [{"key": "b", "uri": "u2", "hash": "h2"}]})
    execution = registry.task["execution"]
    assert [(item["key"], item["mode"], item["uri"]) for item in execution["artifacts"]] == [
        ("a", "output", "u1@h1"),
        ("b", "output", "u2@h2"),
    ]
    assert execution["model_desc"] == {"kept": 1}


def test_models_hyperparameters_and_runtime_survive_concurrent_writes() -> None:
    registry = Registry(models={"input": [], "output": []}, hyperparams={}, runtime={})
    one, two = registry.client("one"), registry.client("two")
    one.read()
    two.read()
    item = {"section": "General", "value": "1", "description": None}
    one.write(models={"input": [{"name": "a", "model": "1"}]}, hyperparams={"General": {"p": item}}, runtime={"x": 1})
    two.write(models={"input": [{"name": "b", "model": "2"}]}, hyperparams={"General": {"q": item}}, runtime={"y": 2})
    assert [entry["name"] for entry in registry.task["models"]["input"]] == ["a", "b"]
    assert registry.task["models"]["output"] == []
    assert registry.task["hyperparams"]["General"].keys() == {"p", "q"}
    assert registry.task["runtime"] == {"x": 1, "y": 2}


def test_whole_replacement_replaces_where_nobody_else_has_written() -> None:
    """ClearML replaces these fields whole: a client that knows them all and sends one keeps one."""
    registry = Registry(hyperparams={"General": {"a": {"value": "1"}, "b": {"value": "2"}}}, runtime={"x": 1})
    client = registry.client("one", SDK)
    client.read()
    client.write(hyperparams={"General": {"c": {"value": "3"}}}, runtime={})
    assert registry.task["hyperparams"] == {"General": {"c": {"value": "3"}}}
    assert registry.task["runtime"] == {}
