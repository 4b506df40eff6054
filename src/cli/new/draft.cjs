// Says what a manifest could say of a script in JavaScript or TypeScript, which is never run. Node lends its parser to no program, so
// this reads what formatters write: functions whose line begins with `export`, types, and JSDoc.

const SIMPLE = ['string', 'number', 'boolean', 'object'];
const MOST_DEEP = 8;
const MOST_PARTS = 300;
let parts = 0;
const notes = new Set();
// A function that is exported as the usual one has no name of its own where none is written.
const HEAD = RegExp(
  '^(?:(?<isExported>export )?(?:default )?(?:async )?(?:function\\*? |const )(?<name>\\w+)(?: = (?:async )?)?' +
    '|export (?<usual>default) (?:async )?(?:function\\*? ?)?)(?:<[^(]{0,200}>)?\\(',
  'gm',
);
// A member, and a type, may end with its line.
const LAST_OF_MEMBER = /\n(?<=[\w"'\])}>][ \t\r]*\n)(?=\s*(?:\/\*|\[|(?:readonly )?[\w"'$-]+\??[:(]))/g;
const LINE_COMMENT = /("[^"\n]*"|'[^'\n]*'|\/\*[^]*?\*\/)|\/\/[^\n]*/g;
// Braces, or a name whose default may be an object.
const OF_OBJECT = /^(\{|[\w$]+\??\s*(=\s*[^-\s\d"'`[]|$)|$)/;
const nameOf = (head) => head.name ?? head.usual;

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
  parts += 1;
  if (!one || depth > MOST_DEEP || parts > MOST_PARTS) return {};
  if (either.every((part) => /^["']/.test(part))) return { enum: either.map((part) => part.slice(1, -1)) };
  if (either.length > 1) return {};
  if (one.endsWith('[]')) return { type: 'array', items: typeOf(one.slice(0, -2), source, depth + 1) };
  if (split(one, '&').length > 1) return {};
  if (one.startsWith('{')) return members(one, source, depth + 1);
  // JSDoc writes `Object`, too.
  if (SIMPLE.includes(one.toLowerCase())) return { type: one.toLowerCase() };
  const named = /^\w+$/.test(one) && source.split(RegExp(`^(?:export )?(?:interface|type) ${one}(?: =)? `, 'm'))[1];
  if (!named) return {};
  return named.startsWith('{') ? members(named, source, depth + 1) : typeOf(split(named.split(/\n(?=\w)/)[0], ';')[0], source, depth + 1);
}

// The members of a type in braces; it is not known where more follows them. Those that are not known may have any value.
function members(text, source, depth) {
  const [inside = ''] = split(text.slice(1), '');
  if (/^\s*\}\s*[&|[]/.test(text.slice(text.indexOf(inside) + inside.length))) return {};
  const schema = { type: 'object', properties: Object.create(null), required: [] };
  for (const part of split(inside.replace(LAST_OF_MEMBER, ';\n'), ';,')) {
    const [, doc, quoted, bare, optional, type] =
      /^(\/\*[^]*?\*\/)?\s*(?:readonly )?(?:["'](.*?)["']|([\w$]+))(\?)?\s*:([^]*)$/.exec(part) ?? [];
    const name = quoted ?? bare;
    if (name === undefined) {
      schema.additionalProperties = true;
      notes.add(`the member ${part.replace(/\s+/g, ' ').slice(0, 80)}`);
      continue;
    }
    schema.properties[name] = { ...typeOf(type, source, depth), ...(doc && { description: plain(doc) }) };
    if (!optional) schema.required.push(name);
  }
  return schema;
}

// What a default says, where it is a literal: a text may stand for anything.
function ofDefault(text, schema) {
  try {
    const value = JSON.parse(text.trim().replace(/^'([^'"\\]*)'$/, '"$1"'));
    const kind = Array.isArray(value) ? 'array' : typeof value;
    if (value === null || (schema.type && schema.type !== kind)) return schema;
    return { ...(kind !== 'string' && !schema.enum && { type: kind }), ...schema, default: value };
  } catch {
    return schema;
  }
}

function plain(doc) {
  return doc.slice(3, -2).replace(/^\s*\* ?/gm, '').trim();
}

// What JSDoc says of each parameter.
function documented(doc) {
  return doc.split('@param ').slice(1).map((text) => {
    const [kind = ''] = text.startsWith('{') ? split(text.slice(1), '') : [];
    const rest = text.slice(text.indexOf(kind) + kind.length);
    const [, optional, own, about] = /^\}? ?(\[)?((?:\w+\.)?\w+)[^\s]*[\s-]*([^@]*)/.exec(rest) ?? [];
    return { kind: kind.replace(/=$/, ''), optional: optional || kind.endsWith('='), own, about };
  });
}

function draft({ text: whole, entry }) {
  const text = whole.replace(LINE_COMMENT, '$1');
  const heads = [...text.matchAll(HEAD)].map(({ index, 0: head, groups }) => ({ index, head, ...groups }));
  const found = heads.filter((it) => (entry ? nameOf(it) === entry : it.isExported || it.usual || text.includes('exports')));
  if (found.length !== 1) {
    const own = heads.map(nameOf).join() || 'none in a line that begins with export, function or const';
    return { refused: `name one function with --entry, or use --script (docs/reference/MANIFEST.md, "input": "argv" for options); it has: ${own}` };
  }
  const [{ index, head }] = found;
  const name = nameOf(found[0]);
  const before = text.slice(0, index).trimEnd();
  const doc = before.endsWith('*/') ? plain(before.slice(before.lastIndexOf('/**'))) : '';
  const taken = split(text.slice(index + head.length), ',');
  if (taken.length > 1) return { refused: `${name}() takes several arguments, and toolhost gives one object: write ${name}({ … })` };
  const [pattern = '', type = ''] = split(taken.join().replace(/^(?:\/\*[^]*?\*\/|\s)+/, ''), ':');
  const said = documented(doc);
  const names = pattern.startsWith('{') ? split(pattern.slice(1), ',') : [];
  const inner = names.map((part) => part.split(/\W/)[0]);
  const [argument] = pattern.split(/\W/);
  // A pattern has no name of its own: JSDoc gives it any.
  const itself = said.find(({ own }) => own && (argument ? own === argument : !own.includes('.') && !inner.includes(own)));
  const written = type.split(/=(?!>)/)[0].trim() || itself?.kind || 'object';
  const known = typeOf(written, text);
  const isOther = known.enum || (known.type ?? 'object') !== 'object' || !OF_OBJECT.test(pattern);
  if (isOther) return { refused: `${name}() does not take an object, and toolhost gives one: write ${name}({ … }), or use --script` };
  const { properties = Object.create(null), required: declared } = known;
  const required = new Set(declared);
  const isWhole = !known.additionalProperties && Boolean(known.properties || (names.length && known.type)) && !names.some((part) => part[0] === '.');
  for (const part of names.filter((part) => part[0] !== '.')) {
    const [own] = part.split(/\W/);
    if (!properties[own] && known.type && !known.additionalProperties) required.add(own);
    properties[own] ??= {};
    if (part.includes('=')) required.delete(own);
  }
  for (const { kind, optional, own: dotted, about } of said) {
    const own = dotted?.replace(/^\w+\./, '');
    if (!own || dotted === itself?.own || (names.length && !properties[own])) continue;
    properties[own] = { ...typeOf(kind, text), ...properties[own], ...(about.trim() && { description: about.trim() }) };
    if (optional) required.delete(own);
  }
  for (const part of names) {
    const [, own, value] = /^(\w+)[^=]*=([^]*)/.exec(part) ?? [];
    if (own) properties[own] = ofDefault(value, properties[own]);
  }
  const parameters = { type: 'object', properties, required: [...required], additionalProperties: !isWhole };
  if (!known.type) notes.add(`the type ${written}`);
  return { description: doc.split('@')[0].trim(), entryPoint: name, parameters, notes: [...notes] };
}

console.log(JSON.stringify(draft(JSON.parse(require('node:fs').readFileSync(0, 'utf8')))));
