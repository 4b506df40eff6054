"""frameworks.py NAME URL: one framework's MCP client finds the tool esc__add and calls it. Installed by install.sh."""

import asyncio
import sys

ARGUMENTS = {"a": 2, "b": 3}
NAME = "esc__add"


async def fastmcp(url):
    from fastmcp import Client

    async with Client(url) as client:
        assert NAME in [tool.name for tool in await client.list_tools()]
        return await client.call_tool(NAME, ARGUMENTS)


async def langchain(url):
    from langchain_mcp_adapters.client import MultiServerMCPClient

    client = MultiServerMCPClient({"toolhost": {"transport": "streamable_http", "url": url}})
    tools = {tool.name: tool for tool in await client.get_tools()}
    return await tools[NAME].ainvoke(ARGUMENTS)


async def openai_agents(url):
    from agents.mcp import MCPServerStreamableHttp

    async with MCPServerStreamableHttp(params={"url": url}) as server:
        assert NAME in [tool.name for tool in await server.list_tools()]
        return await server.call_tool(NAME, ARGUMENTS)


async def pydantic_ai(url):
    try:
        from pydantic_ai.mcp import MCPToolset as Toolset
    except ImportError:
        from pydantic_ai.mcp import MCPServerStreamableHTTP as Toolset
    async with Toolset(url) as toolset:
        if hasattr(toolset, "direct_call_tool"):
            return await toolset.direct_call_tool(NAME, ARGUMENTS)
        return await toolset.client.call_tool(NAME, ARGUMENTS)


async def smolagents(url):
    from smolagents import ToolCollection

    def used():
        server = {"url": url, "transport": "streamable-http"}
        with ToolCollection.from_mcp(server, trust_remote_code=True, structured_output=True) as found:
            return next(tool for tool in found.tools if tool.name == NAME)(**ARGUMENTS)

    return await asyncio.to_thread(used)


async def llama_index(url):
    from llama_index.tools.mcp import BasicMCPClient, McpToolSpec

    tools = {tool.metadata.name: tool for tool in await McpToolSpec(client=BasicMCPClient(url)).to_tool_list_async()}
    return await tools[NAME].acall(**ARGUMENTS)


async def main():
    name, url = sys.argv[1:]
    answer = await globals()[name.replace("-", "_")](url)
    assert "5" in str(answer), answer
    print(f"ok {name}")


asyncio.run(main())
