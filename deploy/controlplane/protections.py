"""Protections that a ClearML server 2.3.0 does not have. Each has a name and can be switched off.

The server runs with `PROTECTED`. `STRICT` (`triton-gateway controlplane --strict`) switches all of them off: tests run
against it to meet what users of a real ClearML server meet. `docs/clearml-compatibility.md` has one row for each.
`app.build` passes them to the code that applies them. Pure values.
"""

from dataclasses import dataclass

# ClearML's own (apiserver/config/default/services/tasks.conf)
CLEARML_SILENCE_S = 7200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Protections:
    """Each one on; off means: as a real ClearML server does it.

    `pins_addresses`: a recorded address keeps meaning the bytes it meant when it was recorded, and can be requested.
    `merges_writes`: of a whole field that a client writes back, only what that client has changed is applied.
    `guards_sections`: the configuration sections of a serving Task stay readable.
    `publishes_only_data`: a model is published only once it has bytes, and stays so; a model that has bytes keeps their
    address if an edit brings the placeholder of an upload. `keeps_shared_files`: bytes that a model or Task refers to
    are not deleted. `keeps_published_models`: a published model is deleted only with
    `force`. `finds_or_creates_projects`: any name, and an existing project is no error. `edits_open_tasks`: the calls
    for parts of a Task (artifacts, parameters, configuration) accept Tasks that run. `filters_metadata`: a query may.
    """

    pins_addresses: bool = True
    merges_writes: bool = True
    guards_sections: bool = True
    publishes_only_data: bool = True
    keeps_shared_files: bool = True
    keeps_published_models: bool = True
    finds_or_creates_projects: bool = True
    edits_open_tasks: bool = True
    filters_metadata: bool = True


PROTECTED = Protections()
STRICT = Protections(
    pins_addresses=False,
    merges_writes=False,
    guards_sections=False,
    publishes_only_data=False,
    keeps_shared_files=False,
    keeps_published_models=False,
    finds_or_creates_projects=False,
    edits_open_tasks=False,
    filters_metadata=False,
)
