"""responses.py URL MODEL TOKEN: has the official Python client read streams of this host, and holds what it accumulated to
what the host says at the end. It ends with 0 where they are the same."""

import json
import sys
import urllib.request

from openai import OpenAI
from openai._models import construct_type
from openai._types import NOT_GIVEN
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import ResponseStreamEvent

url, model, token = sys.argv[1:]


def grown(output):
    """What the client grows from the events: the items by their places, and their texts."""
    def one(item):
        texts = [part["text"] for part in item.get("content") or []]
        return item["id"], item["type"], texts, item["arguments"] if item["type"] == "function_call" else None

    return [one(item) for item in output]


def batch(calls):
    tools = [{"type": "function", "name": "weather"}]
    body = json.dumps({"stream": True, "calls": calls, "tools": tools}).encode()
    request = urllib.request.Request(f"{url}/tool-batches", body, {"Content-Type": "application/json", "Authorization": f"Bearer {token}"})
    state = ResponseStreamState(input_tools=NOT_GIVEN, text_format=NOT_GIVEN)
    final, snapshot = None, None
    for line in urllib.request.urlopen(request).read().decode().splitlines():
        if not line.startswith("data: {"):
            continue
        data = json.loads(line[6:])
        event = construct_type(type_=ResponseStreamEvent, value=data)
        if data["type"] == "response.completed":
            # As grown from the events alone.
            snapshot, final = state._ResponseStreamState__current_snapshot, data["response"]
        state.handle_event(event)
    assert grown([item.to_dict() for item in snapshot.output]) == grown(final["output"]), (snapshot, final)
    return final


def call(at, name, **arguments):
    return {"type": "function_call", "call_id": f"call_{at}", "name": name, "arguments": json.dumps(arguments)}


final = batch([call(0, "esc__add", a=1, b=2), call(1, "esc__none"), call(2, "esc__tell"), call(3, "weather", city="Ulm")])
assert len(final["output"]) == 4 and len(final["tool_outputs"]) == 3, final
client = OpenAI(base_url=url, api_key=token, max_retries=0)
text = ""
with client.responses.stream(model=model, input="How much?") as stream:
    for event in stream:
        if event.type == "response.output_text.delta":
            text += event.delta
    response = stream.get_final_response()
assert response.output_text == text and response.status == "completed", response
whole = client.responses.create(model=model, input="How much?")
assert whole.output_text, whole
print("ok")
