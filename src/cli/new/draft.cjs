// Says what a manifest could say of a script in JavaScript or TypeScript, which is never run. Node lends its parser to no program, so
// this reads what formatters write: functions whose line begins with `export`, types, and JSDoc.

const SIMPLE = ['string', 'number', 'boolean', 'object'];
const MOST_DEEP = 8;

// The parts of a text between characters of `ends`, up to the bracket that closes it.
function split(text, ends) {
  const parts = [''];
  let depth = 0;
  for (const [word] of text.matchAll(/"[^"\n]*"|'[^'\n]*'|\/\*[^]*?\*\/|=>|[^]/g)) {
    if ('([{<'.includes(word)) depth += 1;
    if (')]}>'.includes(word)) depth -= 1;
    if (depth < 0) break;
    if (depth === 0 && ends.includes(word)) parts.push('');
    else parts.push(parts.pop() + word);
  }
  return parts.map((part) => part.trim()).filter(Boolean);
}

function typeOf(text, source, depth = 0) {
  const either = split(text, '|').filter((part) => part !== 'null' && part !== 'undefined');
  const [one] = either;
  if (!one || depth > MOST_DEEP) return {};
  if (either.every((part) => /^["']/.test(part))) return { enum: either.map((part) => part.slice(1, -1)) };
  if (either.length > 1) return {};
  if (one.endsWith('[]')) return { type: 'array', items: typeOf(one.slice(0, -2), source, depth + 1) };
  if (one.startsWith('{')) return members(one.slice(1), source, depth + 1);
  if (SIMPLE.includes(one)) return { type: one };
  const named = /^\w+$/.test(one) && source.split(RegExp(`^(?:export )?(?:interface|type) ${one}(?: =)? `, 'm'))[1];
  if (!named) return {};
  return named.startsWith('{') ? members(named.slice(1), source, depth + 1) : typeOf(split(named, ';')[0], source, depth + 1);
}

function members(text, source, depth) {
  const schema = { type: 'object', properties: {}, required: [] };
  for (const part of split(text, ';,')) {
    const [, doc, name, optional, type] = /^(\/\*[^]*?\*\/)?\s*(?:readonly )?(\w+)(\?)?\s*:([^]*)$/.exec(part) ?? [];
    if (!name) continue;
    schema.properties[name] = { ...typeOf(type, source, depth), ...(doc && { description: plain(doc) }) };
    if (!optional) schema.required.push(name);
  }
  return schema;
}

function plain(doc) {
  return doc.slice(3, -2).replace(/^\s*\* ?/gm, '').trim();
}

function draft({ text, entry }) {
  const heads = [...text.matchAll(/^(export )?(?:default )?(?:async )?(?:function\*? |const )(\w+)(?: = (?:async )?)?\(/gm)];
  const found = heads.filter(([, isExported, name]) => (entry ? name === entry : isExported || text.includes('exports')));
  if (found.length !== 1) return { refused: `name one function with --entry; it has: ${heads.map((head) => head[2]).join() || 'none'}` };
  const [{ index, 0: head, 2: name }] = found;
  const before = text.slice(0, index).trimEnd();
  const doc = before.endsWith('*/') ? plain(before.slice(before.lastIndexOf('/**'))) : '';
  const taken = split(text.slice(index + head.length), ',');
  if (taken.length > 1) return { refused: `${name}() takes several arguments, and toolhost gives one object: write ${name}({ … })` };
  const [pattern = '', type = ''] = split(taken.join(), ':');
  const { properties = {}, required: declared } = typeOf(type, text);
  const required = new Set(declared);
  const names = pattern.startsWith('{') ? split(pattern.slice(1), ',').filter((part) => part[0] !== '.') : [];
  for (const part of names) {
    const [own] = part.split(/\W/);
    if (!properties[own]) required.add(own);
    properties[own] ??= {};
    if (part.includes('=')) required.delete(own);
  }
  for (const said of doc.split('@param ').slice(1)) {
    const [, kind, optional, own, about] = /^(?:\{(.*?)\} )?(\[)?(?:\w+\.)?(\w+)[^\s]*[\s-]*([^@]*)/.exec(said) ?? [];
    if (!own || own === pattern || (names.length && !properties[own])) continue;
    properties[own] = { ...typeOf(kind ?? '', text), ...properties[own], description: about.trim() };
    if (optional) required.delete(own);
  }
  const parameters = { type: 'object', properties, required: [...required], additionalProperties: !names.length && !type };
  return { description: doc.split('@')[0].trim(), entryPoint: name, parameters };
}

console.log(JSON.stringify(draft(JSON.parse(require('node:fs').readFileSync(0, 'utf8')))));
