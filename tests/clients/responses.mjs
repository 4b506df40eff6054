// responses.mjs URL MODEL TOKEN: has the official TypeScript client accumulate a stream of this host, and compares.
import { createRequire } from 'node:module';
import assert from 'node:assert';

// Found from the folder that it is started in, not from this file.
const OpenAI = createRequire(process.cwd() + '/')('openai').default;

const [url, model, token] = process.argv.slice(2);
const client = new OpenAI({ baseURL: url, apiKey: token, maxRetries: 0 });
const stream = client.responses.stream({ model, input: 'How much?' });
let last;
for await (const event of stream) last = event;
assert.equal(last.type, 'response.completed');
const final = await stream.finalResponse();
assert.equal(final.output_text, last.response.output.at(-1).content[0].text);
console.log('ok');
