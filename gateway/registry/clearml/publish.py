"""Registers a bundle through the SDK: a Task that describes how it was made, and a model with metadata.

The Task has the type "optimizer". The original model is connected to it as an input model, so that ClearML's lineage
leads from the bundle to the origin of its weights. The SDK's output is redirected to standard error, because the
standard output of our commands is read by programs.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from gateway.errors import RegistryUnavailable
from gateway.registry.clearml.session import reason_of
from gateway.registry.pack import pack
from gateway.registry.port import Publication, Published, is_id

_LOOKS_IN_A_THREAD: Final = "_Task__detect_repo_async"
"""The SDK's class attribute for the setting `development.vcs_repo_detect_async`."""


def publish(publication: Publication) -> Published:
    """See ``RegistryWriter.publish``."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return _published(publication)
    except Exception as error:  # the SDK's, of any type
        raise RegistryUnavailable(f"{publication.name} cannot be published: {reason_of(error)}") from error


def attach(task_id: str, key: str, path: Path) -> None:
    """See ``RegistryWriter.attach``."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            from clearml import Task

            task = Task.get_task(task_id=task_id)
            is_there = task.upload_artifact(name=key, artifact_object=path, wait_on_upload=True)
    except Exception as error:  # the SDK's, of any type
        raise RegistryUnavailable(f"{key} cannot be attached: {reason_of(error)}") from error
    if not is_there:
        raise RegistryUnavailable(
            f"{key} cannot be attached: the upload failed", hint="is there room on the file server?"
        )


def _published(publication: Publication) -> Published:
    from clearml import InputModel, Model, OutputModel, Task

    # The SDK would fork a process that reports. Threads of torch and ONNX Runtime may hold locks at that moment, which
    # stay locked in the fork for ever (seen to hang). No environment variable turns this off.
    Task._report_subprocess_enabled = False  # noqa: SLF001
    # The SDK would also search for the repository in a thread while `init` goes on. Both create the Task's lock at
    # first use; if each creates its own, one waits for ever (seen to hang with 2.1.12).
    setattr(Task, _LOOKS_IN_A_THREAD, False)
    task = Task.init(
        project_name=publication.project, task_name=f"optimize {publication.name}", task_type=Task.TaskTypes.optimizer,
        reuse_last_task_id=False, output_uri=True, auto_connect_arg_parser=False, auto_connect_frameworks=False,
        auto_resource_monitoring=False, auto_connect_streams=False,
    )  # fmt: skip
    try:
        _describe(task, InputModel, publication)
        model_id = _upload(task, OutputModel, Model, publication)
        task.flush(wait_for_uploads=True)
    except BaseException:
        task.mark_failed(status_reason="the bundle could not be uploaded")
        raise
    finally:
        task.close()
    return Published(str(task.id), model_id)


def _describe(task: Any, input_model: Any, publication: Publication) -> None:
    task.add_tags(list(publication.tags))
    task.set_parameters({f"optimize/{key}": value for key, value in publication.arguments.items()})
    task.connect_configuration(dict(publication.manifest), name="manifest")
    origin = (
        input_model(model_id=publication.source)
        if is_id(publication.source)
        else input_model.import_model(
            weights_url=publication.source, name=f"source of {publication.name}", framework="PyTorch",
            tags=["source", *publication.source_tags],
        )
    )  # fmt: skip
    task.connect(origin, name="source")
    logger = task.get_logger()
    for name, number in publication.numbers.items():
        logger.report_single_value(name, number)
    logger.report_text(publication.text, print_console=False)


def _upload(task: Any, output_model: Any, any_model: Any, publication: Publication) -> str:
    tags = [*publication.tags, *publication.model_tags]
    model = output_model(task=task, name=publication.name, framework="ONNX", tags=tags)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            packed = pack(publication.folder, Path(scratch), publication.name)
            model.update_weights(
                weights_filename=str(packed), target_filename=packed.name, auto_delete_file=False, async_enable=False
            )
        model._set_package_tag()  # noqa: SLF001 - the SDK would pack the folder itself, each time to other bytes
        model.set_all_metadata({key: {"value": value, "type": "str"} for key, value in publication.metadata.items()})
        model.publish()
    except BaseException:
        if model.id:  # nobody else knows it
            any_model.remove(str(model.id), delete_weights_file=False, force=True)
        raise
    return str(model.id)
