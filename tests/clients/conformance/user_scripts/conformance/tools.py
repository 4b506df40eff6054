"""The tools that the MCP conformance suite asks a server for."""

import base64
import time

import toolhost

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
WAV = base64.b64encode(
    b"RIFF\x26\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00\x40\x1f\x00\x00\x40\x1f\x00\x00\x01\x00\x08\x00data\x02\x00\x00\x00\x80\x80"
).decode()
TEXT = {"type": "string"}


def content(*blocks):
    return {"$content": list(blocks)}


def text(words):
    return {"type": "text", "text": words}


def image():
    return {"type": "image", "data": PNG, "mimeType": "image/png"}


def resource(uri, mime, words):
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime, "text": words}}


def given(key, field):
    """A field of an accepted form, or None."""
    answer = toolhost.answers.get(key)
    filled = answer.get("content") if isinstance(answer, dict) and answer.get("action") == "accept" else None
    return filled.get(field) if isinstance(filled, dict) else None


def told(key):
    answer = toolhost.answers[key]
    return f"action={answer['action']}, content={answer.get('content')}"


def simple_text():
    return content(text("This is a simple text response for testing."))


def image_content():
    return content(image())


def audio_content():
    return content({"type": "audio", "data": WAV, "mimeType": "audio/wav"})


def embedded_resource():
    return content(resource("test://embedded-resource", "text/plain", "This is an embedded resource content."))


def multiple_content_types():
    mixed = resource("test://mixed-content-resource", "application/json", '{"test":"data","value":123}')
    return content(text("Multiple content types test:"), image(), mixed)


def error_handling():
    raise RuntimeError("This tool intentionally returns an error for testing")


def tool_with_progress():
    for done in (0, 50, 100):
        toolhost.progress(done, 100)
        time.sleep(0.05)
    return content(text("Done."))


def tool_with_logging():
    for words in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        toolhost.log(words)
        time.sleep(0.05)
    return content(text("Done."))


def logging_tool():
    toolhost.log("A message of this tool")
    return content(text("Done."))


def reconnection():
    return content(text("Reconnection test completed successfully."))


def any_arguments(**arguments):
    return content(text(f"Got {sorted(arguments)}."))


def elicitation(message):
    if "user" not in toolhost.answers:
        return toolhost.ask(user=toolhost.form(message, {"username": TEXT, "email": TEXT}))
    return content(text("User response: " + told("user")))


def missing_capability():
    return toolhost.ask(user_name=toolhost.form("What is your name?", {"name": TEXT}))


def elicitation_defaults():
    if "user" not in toolhost.answers:
        fields = {
            "name": {"type": "string", "default": "John Doe"},
            "age": {"type": "integer", "default": 30},
            "score": {"type": "number", "default": 95.5},
            "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
            "verified": {"type": "boolean", "default": True},
        }
        return toolhost.ask(user=toolhost.form("Please fill this in", fields, []))
    return content(text("Elicitation completed: " + told("user")))


def elicitation_enums():
    if "user" not in toolhost.answers:
        three = ["option1", "option2", "option3"]
        titled = [{"const": f"value{n}", "title": f"Option {n}"} for n in (1, 2, 3)]
        fields = {
            "untitledSingle": {"type": "string", "enum": three},
            "titledSingle": {"type": "string", "oneOf": titled},
            "legacyEnum": {
                "type": "string",
                "enum": ["opt1", "opt2", "opt3"],
                "enumNames": ["Option One", "Option Two", "Option Three"],
            },
            "untitledMulti": {"type": "array", "items": {"type": "string", "enum": three}},
            "titledMulti": {"type": "array", "items": {"anyOf": titled}},
        }
        return toolhost.ask(user=toolhost.form("Please choose", fields, []))
    return content(text("Elicitation completed: " + told("user")))


def ask_name():
    name = given("user_name", "name")
    if name is None:
        return toolhost.ask(user_name=toolhost.form("What is your name?", {"name": TEXT}))
    return content(text(f"Hello, {name}!"))


def ask_with_state():
    if given("confirm", "ok") is None:
        return toolhost.ask({"round": 1}, confirm=toolhost.form("Please confirm", {"ok": {"type": "boolean"}}))
    return content(text("state-ok" if toolhost.state == {"round": 1} else "state-lost"))


def ask_twice():
    state = toolhost.state or {}
    if "step1" in toolhost.answers:
        state = {"name": given("step1", "name")}
        return toolhost.ask(state, step2=toolhost.form("Step 2: What is your favorite color?", {"color": TEXT}))
    if "step2" in toolhost.answers:
        return content(text(f"{state['name']} likes {given('step2', 'color')}."))
    return toolhost.ask({}, step1=toolhost.form("Step 1: What is your name?", {"name": TEXT}))


def ask_what_is_offered():
    if toolhost.answers:
        return content(text(f"Got {sorted(toolhost.answers)}."))
    return toolhost.ask(user=toolhost.form("What is your name?", {"name": TEXT}))


def greet(name="world"):
    return content(text(f"Hello, {name}!"))


def slow_compute(seconds=1, label="job"):
    time.sleep(min(seconds, 20))
    return content(text(f"{label}: computed for {seconds} s"))


def failing_job():
    raise RuntimeError("This job always fails")


def confirm_delete(filename="file.txt"):
    sure = given("confirm", "confirm")
    if sure is None and "confirm" not in toolhost.answers:
        return toolhost.ask(confirm=toolhost.form(f"Delete {filename}?", {"confirm": {"type": "boolean"}}))
    return content(text(f"Deleted {filename}." if sure else f"Kept {filename}."))


def multi_input():
    if {"first", "second"} - set(toolhost.answers):
        asked = {key: toolhost.form(f"The {key}?", {"value": TEXT}) for key in ("first", "second")}
        return toolhost.ask(**asked)
    return content(text(f"{given('first', 'value')}, {given('second', 'value')}"))
