const fs = require('fs');
const sleep = (ms) => new Promise((r) => setTimeout(r, ms));

exports.waits = async function* waits() {
  yield 'one';
  while (!fs.existsSync(__dirname + '/made')) await sleep(10);
  yield { n: 2 };
};
exports.text = function* text() { yield 'a'; yield 'b'; };
exports.whole = async function* whole() { console.log('log'); yield 1; return { sum: 1 }; };
exports.none = function* none() {};
exports.breaks = function* breaks() { yield 1; throw new Error('in the middle'); };
exports.odd = function* odd() { yield 1; yield new Set(); };
exports.long = async function* long() { yield 1; yield 'x'.repeat(300000); await sleep(20000); };
exports.much = function* much() { for (;;) yield 'x'.repeat(1000); };
exports.unfit = function* unfit() { yield 1; yield 'two'; };
exports.endless = async function* endless() { yield 1; for (;;) await sleep(10); };
