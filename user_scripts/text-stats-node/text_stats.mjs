// Counts characters, words and lines. Shows the plain contract: JSON on stdin, one JSON value on stdout.
import { readFileSync } from 'node:fs';

const { text } = JSON.parse(readFileSync(0, 'utf8'));
const words = text.split(/[ \t\r\n]+/u).filter(Boolean);
const longest = words.reduce((most, word) => Math.max(most, [...word].length), 0);
const breaks = text.split('\n').length - 1;
const lines = text === '' ? 0 : breaks + (text.endsWith('\n') ? 0 : 1);

console.log(JSON.stringify({ characters: [...text].length, words: words.length, lines, longestWord: longest }));
