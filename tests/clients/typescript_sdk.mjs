// typescript_sdk.mjs FOLDER URL: the protocol's two TypeScript clients list and call the tool esc__add.
import { createRequire } from 'node:module';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import assert from 'node:assert/strict';

const [folder, url] = process.argv.slice(2);
const require = createRequire(path.join(path.resolve(folder), 'package.json'));
const load = (name) => import(pathToFileURL(require.resolve(name)).href);

async function used(name, client, transport) {
  await client.connect(transport);
  const { tools } = await client.listTools();
  assert(tools.some((tool) => tool.name === 'esc__add'), JSON.stringify(tools));
  const answer = await client.callTool({ name: 'esc__add', arguments: { a: 2, b: 3 } });
  assert.deepEqual(answer.structuredContent, { sum: 5 });
  const wrong = await client.callTool({ name: 'esc__add', arguments: { a: 'x', b: 3 } });
  assert(wrong.isError && wrong.content[0].text.includes('ParameterValidationError'), JSON.stringify(wrong));
  await client.close();
  console.log(`ok ${name}`);
}

const info = { name: 'test', version: '1.0.0' };
{
  const { Client } = await load('@modelcontextprotocol/sdk/client/index.js');
  const { StreamableHTTPClientTransport } = await load('@modelcontextprotocol/sdk/client/streamableHttp.js');
  await used('sdk 1', new Client(info), new StreamableHTTPClientTransport(new URL(url)));
}
{
  const { Client, StreamableHTTPClientTransport } = await load('@modelcontextprotocol/client');
  for (const options of [{}, { versionNegotiation: { mode: 'auto' } }]) {
    const transport = new StreamableHTTPClientTransport(new URL(url));
    await used(`client 2 ${JSON.stringify(options)}`, new Client(info, options), transport);
  }
}
process.exit(0);
