"""frameworks.py NAME SERVER: one framework's MCP client finds the tool esc__add and calls it, at an address, or in a
server over stdio that it starts. Installed by install.sh."""

import asyncio
import sys

ARGUMENTS = {"a": 2, "b": 3}
NAME = "esc__add"


def is_command(server):
    return not server.startswith("http")


async def fastmcp(server):
    from fastmcp import Client
    from fastmcp.client.transports import StdioTransport

    async with Client(StdioTransport(server, []) if is_command(server) else server) as client:
        assert NAME in [tool.name for tool in await client.list_tools()]
        return await client.call_tool(NAME, ARGUMENTS)


async def langchain(server):
    from langchain_mcp_adapters.client import MultiServerMCPClient

    http = {"transport": "streamable_http", "url": server}
    stdio = {"transport": "stdio", "command": server, "args": []}
    client = MultiServerMCPClient({"toolhost": stdio if is_command(server) else http})
    tools = {tool.name: tool for tool in await client.get_tools()}
    return await tools[NAME].ainvoke(ARGUMENTS)


async def openai_agents(server):
    from agents.mcp import MCPServerStdio, MCPServerStreamableHttp

    stdio = is_command(server)
    made = MCPServerStdio(params={"command": server}) if stdio else MCPServerStreamableHttp(params={"url": server})
    async with made as client:
        assert NAME in [tool.name for tool in await client.list_tools()]
        return await client.call_tool(NAME, ARGUMENTS)


async def pydantic_ai(server):
    try:
        from fastmcp.client.transports import StdioTransport
        from pydantic_ai.mcp import MCPToolset

        made = MCPToolset(StdioTransport(server, []) if is_command(server) else server)
    except ImportError:
        from pydantic_ai.mcp import MCPServerStdio, MCPServerStreamableHTTP

        made = MCPServerStdio(server, []) if is_command(server) else MCPServerStreamableHTTP(server)
    async with made as toolset:
        if hasattr(toolset, "direct_call_tool"):
            return await toolset.direct_call_tool(NAME, ARGUMENTS)
        return await toolset.client.call_tool(NAME, ARGUMENTS)


async def smolagents(server):
    from mcp import StdioServerParameters
    from smolagents import ToolCollection

    def used():
        http = {"url": server, "transport": "streamable-http"}
        where = StdioServerParameters(command=server) if is_command(server) else http
        with ToolCollection.from_mcp(where, trust_remote_code=True, structured_output=True) as found:
            return next(tool for tool in found.tools if tool.name == NAME)(**ARGUMENTS)

    return await asyncio.to_thread(used)


async def llama_index(server):
    from llama_index.tools.mcp import BasicMCPClient, McpToolSpec

    tools = {tool.metadata.name: tool for tool in await McpToolSpec(client=BasicMCPClient(server)).to_tool_list_async()}
    return await tools[NAME].acall(**ARGUMENTS)


async def main():
    name, server = sys.argv[1:]
    answer = await globals()[name.replace("-", "_")](server)
    assert "5" in str(answer), answer
    print(f"ok {name}")


asyncio.run(main())
