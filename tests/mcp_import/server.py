"""A small MCP server: it has one tool, which says how long its key is."""
import json
import os
import sys

TOOL = {"name": "key", "description": "The length of the key.", "inputSchema": {"type": "object"}}
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    answer = {"jsonrpc": "2.0", "id": message["id"]}
    method = message["method"]
    if method == "initialize":
        answer["result"] = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "own", "version": "1"}}
    elif method == "tools/list":
        answer["result"] = {"tools": [TOOL, {**TOOL, "name": "../key"}]}
    elif method == "tools/call":
        text = f"{len(os.environ['OWN_KEY'])} {os.environ['OWN_LEVEL']}"
        answer["result"] = {"content": [{"type": "text", "text": text}]}
    else:
        answer["error"] = {"code": -32601, "message": "no such method"}
    print(json.dumps(answer), flush=True)
