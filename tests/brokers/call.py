"""Calls a tool service with TrustGraph's own client, unmodified: one JSON line for each call.

call.py BROKER SERVICE LAYER, and on standard input a list of calls: {"config", "arguments", "stream"}. BROKER is
`amqp:PORT` or `pulsar:PORT`, of this machine; `uri:SERVICE` is the other spelling of its topics, for Pulsar. All calls run at once. LAYER is `client`, or `agent`: the part of TrustGraph's
agents that calls tool services.
"""

import asyncio
import inspect
import json
import sys
import uuid
from types import SimpleNamespace

import trustgraph.base.pubsub as pubsub
from trustgraph.base import request_response_spec, tool_service_client
from trustgraph.schema import ToolServiceRequest, ToolServiceResponse

OLD = hasattr(request_response_spec, "RequestResponse")
WITHIN = 60


def connection(broker):
    kind, port = broker.split(":")
    settings = {"pubsub_backend": "rabbitmq", "rabbitmq_host": "127.0.0.1", "rabbitmq_port": int(port),
                "rabbitmq_username": "guest", "rabbitmq_password": "guest", "rabbitmq_vhost": "/"}
    if kind == "pulsar":
        settings = {"pubsub_backend": "pulsar", "pulsar_host": f"pulsar://127.0.0.1:{port}"}
    return (pubsub.get_pubsub if OLD else pubsub.get_async_pubsub)(**settings)


async def client(backend, requests, replies):
    if OLD:
        made = tool_service_client.ToolServiceClient(
            backend=backend, consumer_name="test", subscription=f"test-{uuid.uuid4()}",
            request_topic=requests, request_schema=ToolServiceRequest, request_metrics=None,
            response_topic=replies, response_schema=ToolServiceResponse, response_metrics=None)
        await made.start()
        return made
    spec = tool_service_client.ToolServiceClientSpec(request_name="to", response_name="from")
    flow = SimpleNamespace(consumer={})
    processor = SimpleNamespace(async_backend=backend, id="test")
    return await spec.register(flow, processor, {"topics": {"to": requests, "from": replies}})


async def main(broker, service, layer):
    backend = connection(broker)
    requests, replies = f"request:tg:{service}", f"response:tg:{service}"
    if service.startswith("uri:"):
        requests, replies = (f"non-persistent://tg/{kind}/{service[4:]}" for kind in ("request", "response"))
    processor = SimpleNamespace(id="test-agent", pubsub=backend, tool_service_clients={})
    caller = await client(backend, requests, replies) if layer == "client" else None

    async def once(number, call):
        config, arguments = call.get("config", {}), call.get("arguments", {})
        parts = []
        try:
            if layer == "agent":
                from trustgraph.agent.react.tools import ToolServiceImpl
                tool = ToolServiceImpl(SimpleNamespace(_user="test"), requests, replies, config, [], processor)
                answer = await asyncio.wait_for(tool.invoke(**arguments), WITHIN)
            else:
                method = caller.call_streaming if call.get("stream") else caller.call
                named = {"config": config, "arguments": arguments, "timeout": WITHIN}
                if "user" in inspect.signature(method).parameters:
                    named["user"] = "test"
                if call.get("stream"):
                    async def part(text):
                        parts.append(text)
                    named["callback"] = part
                answer = await method(**named)
            told = {"answer": answer, "parts": parts}
        except Exception as why:  # The reason is judged by whoever started this.
            told = {"error": f"{type(why).__name__}: {why}"}
        print(json.dumps({"call": number} | told), flush=True)

    calls = json.load(sys.stdin)
    # The first one opens what later ones share.
    await once(0, calls[0])
    await asyncio.gather(*(once(number, call) for number, call in enumerate(calls) if number))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
    # Its threads need not end.
    sys.stdout.flush()
    import os
    os._exit(0)
