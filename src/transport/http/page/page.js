'use strict';
// The page for operators. It requests everything from /v1 as its reader. What toolhost answers is text from scripts, servers and
// callers: it becomes text nodes alone. There is no innerHTML here, and Trusted Types would refuse it.

const TOKEN = 'toolhost-token';
// How often a part is looked at again; `every` of a part says that more is skipped.
const LOOK_MS = 3000;
// How long a new list of questions takes no answer: it moved below the hand of who was about to answer another.
const STILL_MS = 500;
const MAX_CALLS = 100;
const MAX_PICTURE_BYTES = 16 * 1024 * 1024;
let token = sessionStorage.getItem(TOKEN);
let reader = '';

// ---- nodes

// Characters that change how others are read, or cannot be seen, are written out: those of `text::printable`, but for lines and tabs.
const UNSEEN = /[^\P{Cc}\t\n]|[\p{Default_Ignorable_Code_Point}\p{Noncharacter_Code_Point}\u2028\u2029\u2800\ufff9-\ufffb]/gu;

function shown(value) {
  const text = typeof value === 'string' ? value : JSON.stringify(value, null, 1) ?? '';
  return text.replace(UNSEEN, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
}

function fill(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child instanceof Node) node.append(child);
    else if (child !== null && child !== undefined && child !== false && child !== '') node.append(shown(child));
  }
  return node;
}

// `attributes` are of this file alone: none is named by an answer.
function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (typeof value === 'function') node.addEventListener(name, value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? '' : value);
  }
  return fill(node, children);
}

// A link inside the page: the address begins with the name of a part.
const link = (part, id, words) => el('a', { href: `#${part}/${encodeURIComponent(id)}`, 'data-key': `${part}/${id}` }, words ?? id);
const code = (text) => el('code', {}, text);
const line = (text) => el('code', { class: 'line' }, text);
const button = (words, does, more) => el('button', { type: 'button', click: does, ...more }, words);
const badge = (words, kind) => el('span', { class: `badge ${kind}` }, words);
const list = (all) => el('ul', {}, all.map((one) => el('li', {}, one)));
const field = (words, control, more) => el('label', { class: `field ${more ?? ''}` }, words, control);
const empty = (words) => el('p', { class: 'quiet' }, words);

function facts(pairs) {
  const there = pairs.filter(([, value]) => ![null, undefined, ''].includes(value) && !(Array.isArray(value) && !value.length));
  return el('dl', {}, there.map(([name, value]) => [el('dt', {}, name), el('dd', {}, value)]));
}

// On a narrow screen each row is a card, whose cells say their names.
function table(names, rows, makeCell, kind) {
  const head = el('thead', {}, el('tr', {}, names.map((name) => el('th', { scope: 'col' }, name))));
  const cell = makeCell ?? ((value, name) => el('td', { 'data-name': name }, value));
  const body = el('tbody', {}, rows.map((row) => el('tr', {}, row.map((value, n) => cell(value, names[n])))));
  return el('div', { class: 'scroll' }, el('table', { class: kind ?? 'cards' }, head, body));
}

function cut(text, length) {
  const characters = [...(text ?? '')];
  return characters.length > length ? `${characters.slice(0, length).join('')}…` : text;
}

function time(text) {
  const at = new Date(text);
  if (Number.isNaN(at.getTime())) return shown(text ?? '');
  const today = at.toDateString() === new Date().toDateString();
  return el('time', { datetime: text, title: text, class: 'nowrap' }, today ? at.toLocaleTimeString() : at.toLocaleString());
}

function bytes(count) {
  if (count < 1024) return `${count} B`;
  return count < 1024 * 1024 ? `${(count / 1024).toFixed(1)} KiB` : `${(count / 1024 / 1024).toFixed(1)} MiB`;
}

// ---- messages and requests

const byId = (id) => document.getElementById(id);

function say(words) {
  byId('failed').textContent = '';
  byId('said').textContent = shown(words);
}

function fail(words) {
  byId('said').textContent = '';
  byId('failed').textContent = shown(words);
}

class Refused extends Error {
  constructor(status, error) {
    super([error?.message ?? `The server answered with status ${status}.`, error?.person].filter(Boolean).join('\n'));
    this.status = status;
    // Rules that cannot be read are a 403, too, and concern the operator most.
    this.isForOthers = status === 403 && error?.type === 'AuthorizationError';
  }
}

async function ask(path, { method = 'GET', body, signal } = {}) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  const text = body === undefined ? undefined : JSON.stringify(body);
  const fixed = { cache: 'no-store', credentials: 'omit', redirect: 'error', referrerPolicy: 'no-referrer' };
  try {
    return await fetch(path, { method, headers, body: text, signal, ...fixed });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    // Another program may take its port, and would get the token with the next look.
    if (token) signIn('The server did not answer. Enter the token again once you know that it runs.');
    throw new Error('The server does not answer. Does it still run?');
  }
}

async function json(path, options) {
  const answer = await ask(path, options);
  const value = await answer.json().catch(() => null);
  // The outcome of a call, also of a refused one, is more than its error.
  if (answer.ok || value?.usage) return value;
  throw new Refused(answer.status, value?.error);
}

const ofTool = (id, rest) => `/v1/tools/${encodeURIComponent(id)}/${rest}`;

// ---- pictures and files

// What the bytes show, whatever anybody says that they are: SVG is text, and never a picture here.
function rasterType(start) {
  const begins = (...bytes) => bytes.every((byte, n) => start[n] === byte);
  if (begins(0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a)) return 'image/png';
  if (begins(0xff, 0xd8, 0xff)) return 'image/jpeg';
  if (begins(0x47, 0x49, 0x46, 0x38)) return 'image/gif';
  const webp = begins(0x52, 0x49, 0x46, 0x46) && String.fromCharCode(...start.slice(8, 12)) === 'WEBP';
  return webp ? 'image/webp' : null;
}

function picture(content, name) {
  const type = rasterType(content);
  if (!type) return null;
  const address = URL.createObjectURL(new Blob([content], { type }));
  const image = el('img', { alt: shown(name), src: address });
  image.decode().catch(() => image.replaceWith(empty('This picture cannot be shown.'))).finally(() => URL.revokeObjectURL(address));
  return el('figure', {}, image, el('figcaption', {}, name));
}

async function artifact(id, owner) {
  const as = owner ? `?as=${encodeURIComponent(owner)}` : '';
  const answer = await ask(`/v1/artifacts/${encodeURIComponent(id)}${as}`);
  if (!answer.ok) throw new Refused(answer.status, (await answer.json().catch(() => null))?.error);
  const [, name] = /filename\*=UTF-8''(.*)/.exec(answer.headers.get('Content-Disposition'));
  return { content: new Uint8Array(await answer.arrayBuffer()), name: decodeURIComponent(name) };
}

async function save(file, owner) {
  const { content, name } = await artifact(file.id, owner);
  const address = URL.createObjectURL(new Blob([content], { type: 'application/octet-stream' }));
  el('a', { href: address, download: shown(name) }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
}

// The files that a call left. They are its caller's: others do not get them from the server.
function files(all, owner) {
  if (!all?.length) return null;
  const pictures = el('div', { class: 'pictures' });
  const rows = all.map((file) => {
    const does = () => save(file, owner).catch((error) => fail(`${file.name}: ${error.message}`));
    return [file.name, file.mediaType, bytes(file.bytes), file.id ? button('Save', does) : ''];
  });
  for (const file of all.filter((one) => one.id && one.mediaType?.startsWith('image/') && one.bytes <= MAX_PICTURE_BYTES)) {
    const place = el('figure', {}, empty(`${file.name} …`));
    pictures.append(place);
    artifact(file.id, owner)
      .then(({ content }) => place.replaceWith(picture(content, file.name) ?? empty(`${file.name} is no picture.`)))
      .catch((error) => place.replaceWith(empty(error.status === 404 ? `${file.name} is its caller’s, or gone.` : error.message)));
  }
  return [el('h3', {}, 'Files'), pictures, table(['Name', 'Type', 'Size', ''], rows)];
}

// What a call left, as far as it is still stored: the record has no ids.
async function left(record, owner) {
  const as = owner ? `?as=${encodeURIComponent(owner)}` : '';
  const { artifacts } = await json(`/v1/artifacts${as}`);
  const stored = new Map(artifacts.map((file) => [`${file.sha256} ${file.name}`, file]));
  return record.artifacts.map((file) => stored.get(`${file.sha256} ${file.name}`) ?? { ...file, mediaType: 'not stored any more' });
}

// Whether one may act as another is only known by trying, and a refusal has a record: so it is tried once, when it is asked for.
function filesOfOther(record) {
  const place = el('div', {}, files(record.artifacts.map((file) => ({ ...file, mediaType: '' }))));
  const show = () => attempt(async () => {
    const all = await left(record, record.user);
    place.replaceChildren();
    fill(place, [files(all, record.user)]);
  });
  place.append(el('div', { class: 'actions' }, button(['Show them as ', record.user], show)));
  return place;
}

function fromBase64(text) {
  try {
    return Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  } catch {
    return new Uint8Array();
  }
}

// What a tool answered with content: texts and pictures in the answer itself.
function content(blocks) {
  return blocks.map((block) => {
    const drawn = block?.type === 'image' && typeof block.data === 'string' ? picture(fromBase64(block.data), block.mimeType ?? 'image') : null;
    return drawn ?? el('pre', {}, typeof block?.text === 'string' ? block.text : block);
  });
}

// ---- denials, and the line that would grant them

function denials(all) {
  const rows = all.map((denial) => {
    const target = el('span', {}, denial.operation ?? denial.kind, ' ', code(denial.target ?? denial.message ?? ''));
    const why = [denial.rule, denial.narrower && ` (${denial.narrower})`, denial.calls > 1 && `, ${denial.calls} calls`];
    return [target, el('span', {}, why), denial.ask ? el('span', {}, denial.ask) : denial.fix ? line(denial.fix) : 'no grant is proposed'];
  });
  return table(['Denied', 'By', 'What would grant it'], rows);
}

// ---- requested ∩ allowed = enforced

const SVG = 'http://www.w3.org/2000/svg';
const MAX_SQUARES = 16;

function squares(granted, asked) {
  const count = Math.min(asked, MAX_SQUARES);
  const drawing = document.createElementNS(SVG, 'svg');
  drawing.setAttribute('viewBox', `0 0 ${count * 14 - 2} 12`);
  drawing.setAttribute('aria-hidden', 'true');
  for (let n = 0; n < count; n += 1) {
    const square = document.createElementNS(SVG, 'rect');
    const is = n < granted;
    for (const [name, value] of Object.entries({ x: n * 14 + (is ? 0 : 1), y: is ? 0 : 1, width: is ? 12 : 10, height: is ? 12 : 10, rx: 2 })) square.setAttribute(name, value);
    square.setAttribute('class', is ? 'is-granted' : 'is-denied');
    drawing.append(square);
  }
  return drawing;
}

function counts(asks) {
  const kinds = Object.entries(asks ?? {});
  if (!kinds.length) return el('span', { class: 'quiet' }, 'nothing');
  return el('div', { class: 'squares' }, kinds.map(([kind, [asked, granted]]) =>
    el('span', { class: 'nowrap' }, `${kind} ${granted} of ${asked}`, squares(granted, asked))));
}

const box = (kind, ...children) => ({ kind, children });
const lane = ({ kind, children }, name) => el('td', { class: kind }, el('div', { 'data-name': name }, children));
const mark = (sign) => el('span', { class: 'mark', 'aria-hidden': 'true' }, sign);

function lanes(asks) {
  if (!asks.length) return empty('This tool requests nothing: it has its own scratch alone.');
  const rows = asks.map((ask) => {
    const granted = ask.allowed || ask.effective !== null;
    const rule = [ask.rule || 'needs no rule', ask.why && ` — ${ask.why}`];
    return [
      box('asked', `${ask.what === 'host' ? 'reach' : ask.what} `, code(ask.asked)),
      ask.allowed ? box('good', mark('✓'), rule) : box('bad', mark('✕'), ask.narrower && `${ask.narrower}: `, ask.reason),
      granted ? box('good', mark('✓'), ask.effective, el('div', { class: 'quiet small' }, ask.enforcedBy.join(', '))) : box('none', 'nothing'),
    ];
  });
  return table(['Requested', 'Allowed', 'Enforced'], rows, lane, 'lanes');
}

// ---- the parts of the page

const STATES = { ready: 'good', client: 'good', disabled: 'bad', refused: 'bad', unavailable: 'warn' };

function disableForm(tools, done) {
  const named = el('input', { value: tools, required: true, spellcheck: 'false', autocomplete: 'off' });
  const why = el('input', { required: true, maxlength: 256, autocomplete: 'off' });
  const now = el('input', { type: 'checkbox' });
  const submit = async (event) => {
    event.preventDefault();
    await attempt(async () => {
      const answer = await json(`/v1/tools/${encodeURIComponent(named.value.trim())}/disable`, { method: 'POST', body: { why: why.value, now: now.checked } });
      say(`${answer.disabled.tools} is disabled: ${answer.covers.length} loaded tools${answer.recorded ? '' : '; the audit log could not be written'}.`);
      why.value = '';
      done();
    });
  };
  return el('form', { submit }, field('Tools: ns:name, ns:name@1.2.0, ns:* or *', named, 'wide'), field('Why, for operators', why, 'wide'),
    el('label', { class: 'tick' }, now, ' end calls that run, too'), el('button', { class: 'stop' }, 'Disable'));
}

function stops(all, done) {
  if (!all.length) return null;
  const enable = (tools) => attempt(async () => {
    await json(ofTool(tools, 'enable'), { method: 'POST' });
    say(`${tools} is enabled.`);
    done();
  });
  return el('div', { class: 'card' }, el('h3', {}, 'Disabled'), all.map((stop) => el('div', { class: 'actions' },
    stop.root && button(['Enable ', stop.tools], () => enable(stop.tools), { 'data-key': `enable ${stop.tools}` }),
    el('span', {}, !stop.root && `${stop.tools}, ordered on the command line, which takes it back: `, `since ${stop.at} by ${stop.by}: ${stop.why}`))));
}

async function attempt(does) {
  try {
    await does();
  } catch (error) {
    if (error.status === 401) signIn('The server does not accept this token any more.');
    else fail(error.message);
  }
}

const toolsPart = {
  title: 'Tools',
  every: 5,
  head(refresh) {
    this.words = el('input', { type: 'search', 'aria-label': 'Filter', placeholder: 'name or description', input: refresh });
    const states = ['any state', ...Object.keys(STATES)].map((state) => el('option', {}, state));
    this.state = el('select', { 'aria-label': 'State', change: refresh }, states);
    const stopAll = el('details', {}, el('summary', {}, 'Disable tools'), disableForm('*', refresh));
    return [el('form', { submit: (event) => event.preventDefault() }, field('Filter', this.words, 'wide'), field('State', this.state)), stopAll];
  },
  async load() {
    const [inventory, status] = await Promise.all([json('/v1/inventory'), json('/v1/status')]);
    return { inventory, disabled: status.disabled, stale: status.stale };
  },
  draw({ inventory, disabled, stale }, refresh) {
    const words = this.words.value.toLowerCase();
    const state = this.state.value;
    const fits = (one) => (state === 'any state' || one.state === state)
      && [one.tool, one.displayName, one.description].some((text) => text?.toLowerCase().includes(words));
    const isBuiltin = (one) => one.tool.startsWith('core:');
    const all = inventory.tools.filter(fits).sort((a, b) => isBuiltin(a) - isBuiltin(b));
    const rows = all.map((one) => [
      [link('tools', one.tool), el('div', { class: 'quiet small' }, cut(one.description, 140))],
      [badge(one.state, STATES[one.state]), one.confirms && [' ', badge('a person agrees', 'warn')],
        one.approval && one.approval.state !== 'approved' && [' ', badge(one.approval.state, 'bad')],
        el('div', { class: 'quiet small' }, one.needs.map((need) => el('div', {}, need)))],
      counts(one.asks),
      one.policy,
    ]);
    const skipped = inventory.skippedFiles;
    return [
      stale?.length > 0 && el('p', { class: 'notice' }, stale.join('\n')),
      skipped > 0 && el('p', { class: 'notice' }, `${skipped} files were skipped: toolhost check says why.`),
      disabled?.unreadable ? el('p', { class: 'notice bad' }, disabled.unreadable) : stops(disabled ?? [], refresh),
      el('p', { class: 'quiet' }, `${all.length} of ${inventory.tools.length} tools. A full square is a request that is enforced as requested, an empty one was denied.`),
      rows.length ? table(['Tool', 'State', 'Requested ∩ allowed = enforced', 'Policy'], rows) : empty('No tool fits.'),
    ];
  },
};

const toolPart = {
  title: (id) => id,
  every: 5,
  head(refresh, id) {
    return [el('p', {}, el('a', { href: '#tools' }, '← all tools')),
      el('details', {}, el('summary', {}, 'Disable this tool'), disableForm(id.split('@')[0], refresh))];
  },
  async load(id) {
    const [audit, approval, status] = await Promise.all([json(ofTool(id, 'audit')), json(ofTool(id, 'approval')), json('/v1/status')]);
    const disabled = Array.isArray(status.disabled) ? status.disabled : [];
    return { audit, approval, disabled: disabled.filter((stop) => covers(stop.tools, audit.tool)) };
  },
  draw({ audit, approval, disabled }, refresh) {
    const last = audit.lastDenials ?? {};
    const limits = audit.limits.map((one) => [code(one.limit), one.asked ?? 'not requested', `${one.ceiling ?? ''} (${one.from})`, String(one.effective ?? 'none'), one.enforcedBy]);
    const { description, parameters } = audit.manifest ?? {};
    const needed = parameters?.required ?? [];
    const words = Object.entries(parameters?.properties ?? {}).map(([name, one]) =>
      [[code(name), needed.includes(name) ? '' : ' (may be left out)'], shown(one.type ?? one.enum ?? 'any value'), one.description]);
    return [
      stops(disabled, refresh),
      description && el('p', {}, description),
      words.length > 0 && table(['Parameter', 'Type', 'Description'], words),
      audit.refused && el('p', { class: 'notice bad' }, audit.refused.person ?? audit.refused.message),
      el('h2', {}, 'Requested ∩ allowed = enforced'),
      lanes(audit.asks),
      audit.fix && [el('p', {}, 'What it requests and is denied, this line grants on the host, after it has asked:'), line(audit.fix)],
      el('h2', {}, 'Denials of its last calls'),
      last.unreadable && el('p', { class: 'notice bad' }, last.unreadable),
      last.denials?.length
        ? [empty('Each line asks before it writes, and refuses what is never granted. Grant what the tool is for.'), denials(last.denials)]
        : empty('None is recorded.'),
      last.more > 0 && empty(`${last.more} more.`),
      el('h2', {}, 'How it runs'),
      facts([
        ['policy', [audit.policy, ' ', code(audit.policyFile)]], ['script', audit.script && code(audit.script)],
        ['runtime', audit.runtime && `${audit.runtime.language} ${audit.runtime.version ?? ''}`],
        ['runs inside toolhost', audit.inProcess ? 'yes: no layers of its own' : null],
        ['network', typeof audit.network === 'string' ? audit.network : code(shown(audit.network))],
        ['a person agrees', audit.confirm.map((one) => one.why ?? shown(one)).join('; ')],
        ['callers', audit.callers === null ? 'anybody whom this host serves' : audit.callers.map((one) => one.caller ?? one.name ?? shown(one)).join(', ')],
        ['secrets', audit.secrets.map((one) => `${one.name} (${one.use})`).join(', ')],
        ['notes', audit.notes.length ? list(audit.notes.map((note) => (typeof note === 'string' ? note : shown(note)))) : null],
        ['reaches', audit.reaches?.length ? list(audit.reaches) : null],
      ]),
      el('details', { 'data-key': 'limits' }, el('summary', {}, 'Limits'), table(['Limit', 'Requested', 'Allowed', 'Enforced', 'By'], limits)),
      approval.state && [el('h2', {}, 'Approval'), approvalText(approval)],
      el('details', { 'data-key': 'manifest' }, el('summary', {}, 'Manifest and digests'), el('pre', {}, audit.manifest), el('pre', {}, audit.digests)),
      el('details', { 'data-key': 'not' }, el('summary', {}, 'What no layer defends'), list(audit.notDefended)),
    ];
  },
};

function covers(selector, tool) {
  const id = tool.split('@')[0];
  return selector === '*' || selector === id || selector === tool || (selector.endsWith(':*') && id.startsWith(selector.slice(0, -1)));
}

function approvalText(approval) {
  const { change } = approval;
  const between = change?.between;
  const manifest = between ? Object.entries(between.manifest).filter(([, some]) => Array.isArray(some) && some.length) : [];
  const isMet = approval.state === 'approved';
  return el('div', { class: 'card' },
    badge(approval.state ?? 'not required', isMet ? 'good' : approval.state ? 'bad' : ''),
    facts([
      ['required by', approval.requiredBy], ['record', approval.record], ['cannot be approved', approval.unfit],
      ['changed', change?.parts?.join(', ')], ['new grants', between && list(between.new.length ? between.new : ['none'])],
      ['grants gone', between?.gone.length ? list(between.gone) : null], ['files', between?.parts.length ? list(between.parts) : null],
    ]),
    change?.state === 'changed' && !between && empty('This host has only the digests of what was approved.'),
    manifest.length > 0 && el('details', { 'data-key': `diff ${approval.tool}` }, el('summary', {}, 'Differences of the manifest'),
      manifest.map(([what, some]) => [el('h3', {}, what), el('pre', {}, some)])),
    !isMet && approval.fix && [el('p', {}, 'A token over HTTP approves no code. Read it on the host, and record there that you agree:'), line(approval.fix)]);
}

const approvalsPart = {
  title: 'Approvals of code',
  every: 5,
  async load() {
    const { tools: all } = await json('/v1/inventory');
    const which = all.filter((one) => one.approval && !one.server);
    return Promise.all(which.slice(0, 100).map((one) => json(ofTool(one.tool, 'approval'))));
  },
  draw(all) {
    if (!all.length) return empty('No policy of this host requires an approval, and no manifest names its digest.');
    const order = [...all].sort((a, b) => (a.state === 'approved') - (b.state === 'approved'));
    return order.map((one) => [el('h2', {}, link('tools', one.tool)), approvalText(one)]);
  },
};

const waitingPart = {
  title: 'Calls that wait for a person',
  load: async () => (await json('/v1/approvals')).approvals,
  draw(all, refresh) {
    setCount(all.length);
    if (!all.length) return empty('No call waits for an answer.');
    const drawn = performance.now();
    const answer = (question, approve) => attempt(async () => {
      if (performance.now() - drawn < STILL_MS) {
        say('The list has just changed. Look again, then answer.');
        return;
      }
      await json(`/v1/approvals/${encodeURIComponent(question.call)}`, { method: 'POST', body: { approve } });
      say(approve ? `You agreed: the call of ${question.tool} runs.` : `You refused the call of ${question.tool}.`);
      refresh();
    });
    return all.map((question) => el('article', { class: 'card' },
      el('h2', {}, link('tools', question.tool), ' for ', el('bdi', {}, question.caller)),
      facts([
        ['why you are asked', list(question.why.map((one) => `${one.why} (${one.policy})`))],
        ['through', question.through], ['label', question.label], ['code that calls', question.code && `${question.code.tool}, ${question.code.calls} calls`],
        ['may touch', question.touches.length ? list(question.touches) : 'nothing beyond its scratch'],
        ['answer until', time(question.until)], ['digest', code(question.digest)],
      ]),
      el('h3', {}, 'Arguments'), el('pre', {}, question.arguments),
      question.notShown > 0 && el('p', { class: 'notice bad' }, `${question.notShown} characters of the arguments are not shown.`),
      el('div', { class: 'actions' },
        button('Agree', () => answer(question, true), { class: 'main', 'data-key': `yes ${question.call}`, 'aria-label': `Agree to this call of ${shown(question.tool)}` }),
        button('Refuse', () => answer(question, false), { class: 'stop', 'data-key': `no ${question.call}`, 'aria-label': `Refuse this call of ${shown(question.tool)}` }))));
  },
};

function outcomeBadge(record) {
  const outcome = record.outcome || record.phase || 'running';
  const kind = outcome === 'success' || outcome === 'requires_action' ? 'good' : record.decision === 'refused' || outcome.endsWith('Error') ? 'bad' : 'warn';
  return badge(record.decision === 'refused' ? `refused: ${outcome}` : outcome, kind);
}

const callsPart = {
  title: 'Calls',
  every: 2,
  head(refresh) {
    this.tool = el('input', { autocomplete: 'off', spellcheck: 'false', placeholder: 'ns:name, ns:* or *' });
    this.caller = el('input', { autocomplete: 'off', spellcheck: 'false' });
    this.which = el('select', { change: refresh }, ['all', 'refused', 'failed'].map((which) => el('option', {}, which)));
    const submit = (event) => {
      event.preventDefault();
      refresh();
    };
    return el('form', { submit }, field('Tool', this.tool, 'wide'), field('Caller', this.caller, 'wide'), field('Which', this.which), el('button', {}, 'Show'));
  },
  async load() {
    const query = new URLSearchParams({ limit: MAX_CALLS });
    if (this.tool.value.trim()) query.set('tool', this.tool.value.trim());
    if (this.caller.value.trim()) query.set('caller', this.caller.value.trim());
    if (this.which.value !== 'all') query.set(this.which.value, 'true');
    // The server looks only at what was recorded since the last look of this page.
    const filter = String(query);
    const known = this.known?.filter === filter ? this.known : { last: null, calls: [] };
    if (known.last !== null) query.set('after', known.last);
    const [log, state] = await Promise.all([json(`/v1/log?${query}`), json('/v1/calls')]);
    // Where it does not reach so far, it is another log.
    if (log.last >= known.last) log.calls = [...known.calls, ...log.calls].slice(-MAX_CALLS);
    this.known = { filter, last: log.last, calls: log.calls };
    return { log, open: state.calls.filter((call) => call.phase !== 'ended') };
  },
  draw({ log, open }, refresh) {
    const here = new Set(open.map((call) => call.id));
    const elsewhere = log.running.filter((record) => !here.has(record.call));
    const running = [
      ...open.map((call) => [time(call.began), link('tools', call.tool), call.caller, badge(call.phase, 'warn'),
        button('Cancel', () => end(call.id, refresh), { class: 'stop', 'data-key': `end ${call.id}`, 'aria-label': `Cancel the call of ${shown(call.tool)}` })]),
      ...elsewhere.map((record) => [time(record.time), link('tools', record.tool), record.user, badge('running in another host', 'warn'), '']),
    ];
    const ended = [...log.calls].reverse().map((record) => [
      link('calls', record.call, time(record.time)),
      [record.tool, record.version && `@${record.version}`], record.user, outcomeBadge(record),
      record.usage?.wallMs === undefined ? '' : `${record.usage.wallMs} ms`,
      [cut(record.message, 200), record.artifacts?.length > 0 && el('div', { class: 'quiet small' }, `files: ${record.artifacts.length}`),
        record.violations?.length > 0 && el('div', { class: 'quiet small' }, `denials: ${record.violations.length}`)],
    ]);
    return [
      el('h2', {}, 'Running'),
      running.length ? table(['Since', 'Tool', 'Caller', 'State', ''], running) : empty('No call runs.'),
      el('h2', {}, 'Ended'),
      ended.length ? table(['Time', 'Tool', 'Caller', 'Outcome', 'Took', 'Message'], ended) : empty('No such call is recorded.'),
    ];
  },
};

function end(id, refresh) {
  return attempt(async () => {
    await json(`/v1/calls/${encodeURIComponent(id)}`, { method: 'DELETE' });
    say('It is being ended.');
    refresh();
  });
}

const callPart = {
  title: (id) => `Call ${id}`,
  head: () => el('p', {}, el('a', { href: '#calls' }, '← all calls')),
  every: Infinity,
  async load(id) {
    const record = await json(`/v1/log/${encodeURIComponent(id)}`);
    const isOwn = record.user === reader && !record.through;
    return { record, mine: isOwn && record.artifacts ? await left(record) : null };
  },
  draw({ record, mine }) {
    const tool = record.version ? `${record.tool}@${record.version}` : record.tool;
    return [
      el('p', {}, outcomeBadge(record)),
      record.message && el('pre', {}, record.message),
      facts([
        ['tool', link('tools', tool)], ['time', time(record.time)], ['caller', record.user], ['through', record.through], ['label', record.label],
        ['decided by', record.rule], ['agreed by', record.approvedBy], ['called by code of', record.parent && link('calls', record.parent)],
        ['took', [`${record.usage.wallMs} ms`, record.usage.cpuMs !== undefined && `, ${record.usage.cpuMs} ms of CPU`,
          record.usage.peakMemoryBytes > 0 && `, ${bytes(record.usage.peakMemoryBytes)}`]],
        ['notes', record.notes.length ? list(record.notes) : null],
      ]),
      mine ? files(mine) : record.artifacts && filesOfOther(record),
      record.violations.length > 0 && [el('h2', {}, 'Denials'), denials(record.violations)],
      el('h2', {}, 'Arguments'), el('pre', {}, record.arguments),
      el('details', { 'data-key': 'record' }, el('summary', {}, 'The whole record'), el('pre', {}, record)),
    ];
  },
};

const sessionsPart = {
  title: 'Sessions and servers',
  load: () => json('/v1/calls'),
  draw({ sessions, ready, cold }, refresh) {
    const rows = (all) => all.map((one) => [
      one.session || link('tools', one.tool), one.phase === 'server' ? '' : one.tool, one.language, one.caller || 'shared', time(one.began),
      badge(one.isRunning ? 'serves a call' : 'waits', one.isRunning ? 'warn' : 'good'), one.memoryBytes === undefined ? '' : bytes(one.memoryBytes),
      el('div', { class: 'actions' },
        one.phase === 'session' && one.isRunning && button('Interrupt', () => interrupt(one.id), { 'data-key': `stop ${one.id}` }),
        button('End', () => end(one.id, refresh), { class: 'stop', 'data-key': `end ${one.id}`, 'aria-label': `End ${shown(one.session || one.tool)}` })),
    ]);
    const names = ['Name', 'Tool', 'Language', 'Caller', 'Began', 'State', 'Memory', ''];
    const of = (phase) => rows(sessions.filter((one) => one.phase === phase));
    const part = (words, all, none) => [el('h2', {}, words), all.length ? table(names, all) : empty(none)];
    const why = Object.entries(cold ?? {});
    return [
      part('Sessions', of('session'), 'No session is open.'),
      part('MCP servers', of('server'), 'No MCP server runs. One starts with the first call of its tools.'),
      el('h2', {}, 'Processes that wait for calls'),
      ready.length ? table(['Tool', 'Since', 'Memory'], ready.map((one) => [one.tool, time(one.began), bytes(one.memoryBytes)])) : empty('None.'),
      why.length > 0 && [el('h2', {}, 'Not kept ready'), list(why.map(([tool, words]) => `${tool}: ${words}`))],
    ];
  },
};

const interrupt = (id) => attempt(async () => {
  await json(`/v1/calls/${encodeURIComponent(id)}/interrupt`, { method: 'POST' });
  say('It is being interrupted.');
});

// ---- the console

const consoleState = { language: 'python', session: 'console', code: '', log: el('div', { role: 'log', 'aria-live': 'polite', 'aria-label': 'Results' }) };

function resultOf(outcome) {
  const data = outcome.outputData;
  const parts = [];
  if (outcome.error) parts.push(el('p', { class: 'notice bad' }, `${outcome.error.type}: ${outcome.error.message}`), outcome.error.person && el('pre', {}, outcome.error.person),
    outcome.error.details && el('pre', {}, outcome.error.details));
  if (data?.results) {
    const { logs, error } = data;
    for (const text of [logs?.stdout, logs?.stderr].map((some) => [some ?? []].flat().join(''))) if (text) parts.push(el('pre', {}, text));
    // `<Figure size …>` says nothing beside the figure.
    const drawn = new Set(data.results.filter((one) => one.png ?? one.jpeg).map((one) => one.text));
    for (const result of data.results.filter((one) => !one.text || !drawn.has(one.text))) {
      const text = result.text ?? result.markdown ?? result.json ?? result.html ?? result.svg;
      if (text !== undefined && text !== null) parts.push(el('pre', {}, text));
    }
    // A traceback may be longer than what is shown of it, and its last line says what is wrong.
    if (error) parts.push(el('p', { class: 'notice bad' }, cut(`${error.name}: ${error.value}`, 1000)), error.traceback && el('pre', {}, error.traceback));
    if (data.session?.endedBecause) parts.push(el('p', { class: 'notice' }, `The session began anew: ${data.session.endedBecause}`));
  } else if (Array.isArray(data?.$content)) {
    parts.push(content(data.$content));
  } else if (data !== undefined && data !== null) {
    parts.push(el('pre', {}, data));
  }
  if (!data?.results && outcome.logs?.length) parts.push(el('pre', {}, outcome.logs.join('\n')));
  if (outcome.denials?.observed?.length) parts.push(denials(outcome.denials.observed));
  if (outcome.notes?.length) parts.push(list(outcome.notes));
  return [...parts, files(outcome.artifacts)];
}

const consolePart = {
  title: 'Console',
  head() {
    const state = consoleState;
    const language = el('select', { change: (event) => { state.language = event.target.value; } },
      ['python', 'nodejs', 'bun'].map((one) => el('option', { selected: one === state.language }, one)));
    const session = el('input', { value: state.session, pattern: '[A-Za-z0-9_\\-]{1,64}', autocomplete: 'off', spellcheck: 'false', input: (event) => { state.session = event.target.value; } });
    const source = el('textarea', { rows: 8, required: true, spellcheck: 'false', autocapitalize: 'off', input: (event) => { state.code = event.target.value; } });
    source.value = state.code;
    const run = el('button', { class: 'main' }, 'Run');
    const stop = button('Cancel', () => state.running?.abort(), { class: 'stop', disabled: true });
    const submit = async (event) => {
      event.preventDefault();
      if (state.running) return;
      state.running = new AbortController();
      run.disabled = true;
      stop.disabled = false;
      const shownCode = source.value;
      const words = { language: language.value, code: shownCode, ...(session.value ? { session: session.value } : {}) };
      await attempt(async () => {
        try {
          const outcome = await json('/v1/tools/core:run-code/calls', { method: 'POST', body: { arguments: words }, signal: state.running.signal });
          state.log.prepend(el('article', { class: 'card' }, el('pre', {}, shownCode), resultOf(outcome)));
          say(outcome.success && !outcome.outputData?.error ? `It ran, in ${outcome.usage.wallMs} ms.` : 'It failed: see the result.');
        } catch (error) {
          if (error.name !== 'AbortError') throw error;
          say('The call was cancelled.');
        }
      });
      state.running = null;
      run.disabled = false;
      stop.disabled = true;
    };
    const key = (event) => {
      if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) event.currentTarget.form.requestSubmit();
    };
    source.addEventListener('keydown', key);
    return [
      el('p', { class: 'quiet' }, 'Runs core:run-code as you, under its policy, and in the record like every call. Session empty: each run is a fresh process. Open figures of matplotlib, and files in ./output, are shown.'),
      el('form', { submit }, field('Language', language), field('Session', session, 'wide'), field('Code (Ctrl+Enter runs it)', source, 'whole'), run, stop),
      state.log,
    ];
  },
};

// ---- routes

const PARTS = { tools: toolsPart, waiting: waitingPart, calls: callsPart, approvals: approvalsPart, sessions: sessionsPart, console: consolePart };
const ONE = { tools: toolPart, calls: callPart };
let view = null;

// Puts new children where old ones were; focus and open details stay.
function redraw(place, children) {
  const key = document.activeElement?.dataset?.key;
  const isInside = key && place.contains(document.activeElement);
  const open = new Set([...place.querySelectorAll('details[open][data-key]')].map((one) => one.dataset.key));
  place.replaceChildren();
  fill(place, [children]);
  for (const one of place.querySelectorAll('details[data-key]')) one.open = open.has(one.dataset.key);
  if (isInside) [...place.querySelectorAll('[data-key]')].find((one) => one.dataset.key === key)?.focus();
}

async function look(current, isForced) {
  if (!current.part.load) return;
  let data;
  try {
    data = await current.part.load(current.id);
    current.failed = false;
  } catch (error) {
    if (view !== current) return;
    if (error.status === 401) signIn('The server does not accept this token any more.');
    else if (error.isForOthers) signIn(NOT_OPERATOR);
    else {
      current.failed = true;
      fail(error.message);
      current.place.setAttribute('aria-busy', 'false');
    }
    return;
  }
  const text = JSON.stringify(data);
  if (view !== current || (text === current.text && !isForced)) return;
  current.text = text;
  redraw(current.place, current.part.draw(data, () => look(current, true)));
  current.place.setAttribute('aria-busy', 'false');
}

function route() {
  const [name, ...rest] = location.hash.slice(1).split('/');
  let id = null;
  try {
    id = rest.length ? decodeURIComponent(rest.join('/')) : null;
  } catch { /* not one of our links */ }
  const part = (id ? ONE[name] : PARTS[name]) ?? toolsPart;
  const title = typeof part.title === 'function' ? part.title(id) : part.title;
  for (const entry of byId('nav').children) {
    if (entry.hash === `#${name || 'tools'}`) entry.setAttribute('aria-current', 'page');
    else entry.removeAttribute('aria-current');
  }
  const place = el('div', { 'aria-busy': part.load ? 'true' : null });
  view = { part, id, place, ticks: 0 };
  const current = view;
  byId('failed').textContent = '';
  byId('said').textContent = '';
  byId('main').replaceChildren();
  fill(byId('main'), [el('h1', {}, title), part.head?.(() => look(current, true), id), place]);
  document.title = `${shown(title)} · toolhost`;
  byId('main').focus({ preventScroll: true });
  scrollTo(0, 0);
  look(current);
}

function setCount(count) {
  const there = byId('count');
  there.textContent = String(count);
  there.hidden = count === 0;
}

async function tick() {
  if (document.visibilityState === 'visible' && view) {
    const current = view;
    current.ticks += 1;
    if (current.ticks % (current.part.every ?? 1) === 0) await look(current);
    if (view && current.part !== waitingPart && !current.failed) await json('/v1/approvals').then((answer) => setCount(answer.approvals.length)).catch(() => {});
  }
  setTimeout(tick, LOOK_MS);
}

// ---- who reads this

const NOT_OPERATOR = 'You are not an operator of this host, and this page is for operators. callers.policy.toml, or the line of a token, says who is one.';

function signIn(why) {
  view = null;
  token = null;
  callsPart.known = null;
  sessionStorage.removeItem(TOKEN);
  byId('nav').hidden = true;
  byId('leave').hidden = true;
  byId('said').textContent = '';
  byId('failed').textContent = '';
  byId('main').replaceChildren(byId('sign-in').content.cloneNode(true));
  document.title = 'Sign in · toolhost';
  byId('why').hidden = !why;
  byId('why').textContent = why ?? '';
  byId('main').querySelector('form').addEventListener('submit', (event) => {
    event.preventDefault();
    token = byId('token').value.trim();
    enter();
  });
  byId('token').focus();
}

async function enter() {
  try {
    reader = (await json('/v1/status')).caller;
  } catch (error) {
    const isFirst = !token;
    if (error.status === 401) signIn(isFirst ? null : 'The server does not accept this token.');
    else if (error.isForOthers) signIn(NOT_OPERATOR);
    else signIn(error.message);
    return;
  }
  if (token) sessionStorage.setItem(TOKEN, token);
  byId('leave').hidden = !token;
  byId('nav').hidden = false;
  route();
}

byId('skip').addEventListener('click', (event) => {
  event.preventDefault();
  byId('main').focus();
});
byId('leave').addEventListener('click', () => signIn('You are signed out.'));
window.addEventListener('hashchange', () => view && route());
enter();
tick();
