"""python_sdk.py URL | -- COMMAND…: the protocol's own Python client lists and calls the tool esc__add, in both eras."""

import sys

import anyio
from mcp import Client, StdioServerParameters


async def used(server, mode):
    told = []

    async def progress(done, total, message):
        told.append((done, total, message))

    async with Client(server, mode=mode) as client:
        tools = (await client.list_tools()).tools
        assert "esc__add" in [tool.name for tool in tools], tools
        answer = await client.call_tool("esc__add", {"a": 2, "b": 3}, progress_callback=progress)
        assert not answer.is_error and answer.structured_content == {"sum": 5}, answer
        assert told == [(1, 2, "half")], told
        answer = await client.call_tool("esc__add", {"a": "x", "b": 3})
        assert answer.is_error and "ParameterValidationError" in answer.content[0].text, answer
        if mode == "auto":
            with anyio.fail_after(20):
                async with client.listen(tools_list_changed=True):
                    assert (await client.list_tools()).tools
    print(f"ok {mode}")


async def main():
    if sys.argv[1] == "--":
        server = StdioServerParameters(command=sys.argv[2], args=sys.argv[3:])
    else:
        server = sys.argv[1]
    for mode in ("auto", "legacy"):
        await used(server, mode)


anyio.run(main)
