"""Rules of ClearML's reply envelope."""

from deploy.controlplane import envelope

CALL = envelope.EndpointName(name="tasks.edit", requested_version="2.23")


def test_answer_carries_data_and_meta_with_result_200() -> None:
    """A successful answer says 200/0 and names the endpoint and the version that was asked for."""
    answer = envelope.reply(CALL, {"updated": 1}, call_id="abc")
    assert answer == {
        "meta": {
            "id": "abc",
            "trx": "abc",
            "endpoint": {"name": "tasks.edit", "requested_version": "2.23", "actual_version": "1.0"},
            "result_code": 200,
            "result_subcode": 0,
            "result_msg": "OK",
            "error_stack": None,
            "error_data": {},
        },
        "data": {"updated": 1},
    }


def test_refusal_carries_code_subcode_message_and_empty_data() -> None:
    """A refusal has the same keys as an answer; clients read all of them."""
    answer = envelope.refusal(CALL, envelope.invalid_task_id("x"), call_id="abc")
    assert answer["data"] == {}
    assert answer["meta"]["result_code"] == 400
    assert answer["meta"]["result_subcode"] == 101
    assert answer["meta"]["result_msg"] == "Invalid task id: ids=(x)"
    assert answer["meta"].keys() == envelope.reply(CALL, {}, call_id="abc")["meta"].keys()


def test_unknown_endpoint_is_404_0_and_names_service_and_action() -> None:
    """What is not implemented answers as ClearML answers for what does not exist."""
    error = envelope.unknown_endpoint("queues.get_all")
    assert (error.code, error.subcode) == (404, 0)
    assert error.message == "Unable to find endpoint for service queues and action get_all"
