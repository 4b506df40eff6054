// The same of Node and Bun.
const fs = require('fs'), http = require('http');
const {url, client} = JSON.parse(fs.readFileSync(0));
const ROOTS = '/etc/ssl/certs/ca-certificates.crt';
const says = text => console.log(JSON.stringify(JSON.parse(text).at));
const read = then => r => { let b = ''; r.on('data', d => b += d); r.on('end', () => then(b)); };
const clients = {
  http() {
    const secure = url.startsWith('https');
    require(secure ? 'https' : 'http').get(url, {ca: fs.readFileSync(ROOTS)}, read(says));
  },
  fetch() {
    fetch(url).then(r => r.text()).then(says);
  },
  dns() {
    const u = new URL(url);
    require('dns').resolve4(u.hostname, (e, a) => {
      if (e) throw e;
      http.get({host: a[0], headers: {host: u.hostname}}, read(says));
    });
  },
  async keepalive() {
    const agent = new http.Agent({keepAlive: true, maxSockets: 1});
    const get = () => new Promise((y, n) => http.get(url, {agent}, read(y)).on('error', n));
    await get();
    await get();
    says(await get());
    agent.destroy();
  },
  async bun() {
    says(await (await fetch(url, {tls: {ca: Bun.file(ROOTS)}})).text());
  },
};
clients[client]();
