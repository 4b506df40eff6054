// Counts the characters and words of a text.
// toolhost calls run() with the arguments as one object. Its return value is the result;
// printed text goes to the log.

export function run({ text }: { text: string }) {
  return { characters: [...text].length, words: text.split(/\s+/).filter(Boolean).length };
}
