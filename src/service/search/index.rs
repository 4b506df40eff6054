//! The words of tools as vectors (TF-IDF), and the tools that are nearest to a question.
//!
//! An index is made of exactly the tools that one caller is offered, so that scores tell nothing of
//! others. It uses no network and no model.

use crate::manifest::Manifest;
use crate::registry::Tool;
use crate::service::audit::{ToolUsage, UsageByTool};
use rust_stemmers::{Algorithm, Stemmer};
use serde_json::Value;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, LazyLock};
use unicode_normalization::UnicodeNormalization;

/// How much a word counts in the name of a tool, in its tags, in its description and in the names of
/// its parameters. (Measured with the questions of tests/search, as is all that has a number here.)
const NAME_WEIGHT: f64 = 3.0;
const TAG_WEIGHT: f64 = 2.0;
const DESCRIPTION_WEIGHT: f64 = 1.0;
const PARAMETER_WEIGHT: f64 = 0.3;
/// How much the beginning of a word counts beside it, as what related words share (`merge`, `merger`),
/// and its length.
const BEGINNING_WEIGHT: f64 = 0.3;
const BEGINNING_CHARS: usize = 4;
/// How much a single character counts beside a pair, in scripts without spaces.
const CHARACTER_WEIGHT: f64 = 0.5;
/// The beginning of a description says what a tool is for, the rest how it is used.
const MAX_DESCRIPTION_CHARS: usize = 300;
const MAX_QUESTION_CHARS: usize = 2_000;
/// Most tools of a namespace that are shown as like another one.
const MAX_ALIKE: usize = 20;

/// Words that people use for the same thing: one group on each line.
static RELATED: LazyLock<HashMap<String, Vec<String>>> = LazyLock::new(|| {
    let stemmer = Stemmer::create(Algorithm::English);
    let mut related: HashMap<String, Vec<String>> = HashMap::new();
    for group in include_str!("related.txt").lines() {
        for word in group.split(' ') {
            let groups = related.entry(stemmer.stem(word).into_owned()).or_default();
            // No word has a space, so that a group is none.
            groups.push(group.to_owned());
        }
    }
    related
});

/// The vectors of some tools, by word.
pub struct SearchIndex {
    tools: Vec<Arc<Tool>>,
    terms: HashMap<String, Term>,
}

/// A word, with the tools that have it.
struct Term {
    /// How rare it is.
    idf: f64,
    postings: Vec<Posting>,
}

/// How much of the vector of a tool is one word.
struct Posting {
    tool: usize,
    weight: f64,
}

/// A tool that was found.
pub struct Hit {
    pub tool: Arc<Tool>,
    /// The cosine of its vector and that of the question; by words it is not negative.
    pub score: f64,
    /// The ids of others with the same description and parameters.
    pub alike: Vec<String>,
}

impl SearchIndex {
    pub fn new(tools: Vec<Arc<Tool>>) -> SearchIndex {
        let counts: Vec<WordCounts> = tools.iter().map(|it| counts_of(&it.manifest)).collect();
        let mut terms: HashMap<String, Term> = HashMap::new();
        for (tool, counts) in counts.into_iter().enumerate() {
            for (word, count) in counts.0 {
                let term = terms.entry(word).or_insert_with(|| Term {
                    idf: 0.0,
                    postings: Vec::new(),
                });
                term.postings.push(Posting {
                    tool,
                    weight: dampened(count),
                });
            }
        }
        let all = tools.len() as f64;
        let mut squares = vec![0.0; tools.len()];
        for term in terms.values_mut() {
            term.idf = (1.0 + all / term.postings.len() as f64).ln();
            for posting in &mut term.postings {
                posting.weight *= term.idf;
                squares[posting.tool] += posting.weight * posting.weight;
            }
        }
        for posting in terms.values_mut().flat_map(|term| &mut term.postings) {
            posting.weight /= squares[posting.tool].sqrt();
        }
        SearchIndex { tools, terms }
    }

    pub fn tools(&self) -> &[Arc<Tool>] {
        &self.tools
    }

    /// The tools nearest to a question, best first. Of equal ones those come first whose calls (`used`)
    /// succeeded more often, then by their ids. `cosines`: of all tools in their order, where vectors
    /// say them; else tools that share no word with the question are left out. So are those that
    /// nobody could take.
    pub fn find(
        &self,
        question: &str,
        limit: usize,
        used: &UsageByTool,
        cosines: Option<Vec<f64>>,
        can_take: impl Fn(&Tool) -> bool,
    ) -> Vec<Hit> {
        let scores: HashMap<usize, f64> = match cosines {
            Some(cosines) => cosines.into_iter().enumerate().collect(),
            None => self.by_words(question),
        };
        let found = scores.into_iter();
        let found = found.filter(|(tool, _)| can_take(&self.tools[*tool]));
        let hits = found.map(|(tool, score)| Hit {
            tool: self.tools[tool].clone(),
            // Equal sums that were added up in another order are equal.
            score: (score * 1e6).round() / 1e6,
            alike: Vec::new(),
        });
        let mut hits: Vec<Hit> = hits.collect();
        hits.sort_by(|a, b| {
            let [one, other] = [a, b].map(|hit| &hit.tool.manifest.id);
            let [mine, theirs] = [one, other].map(|id| reliability(id, used));
            let by_score = b.score.total_cmp(&a.score);
            by_score.then(theirs.total_cmp(&mine)).then(one.cmp(other))
        });
        first_of_each_kind(hits, limit)
    }

    /// The scores of the tools that share a word with the question.
    fn by_words(&self, question: &str) -> HashMap<usize, f64> {
        let mut asked = WordCounts::default();
        asked.add(words(&head(question, MAX_QUESTION_CHARS)), 1.0);
        let mut scores: HashMap<usize, f64> = HashMap::new();
        let mut square = 0.0;
        for (word, count) in asked.0 {
            let Some(term) = self.terms.get(&word) else {
                continue;
            };
            let weight = dampened(count) * term.idf;
            square += weight * weight;
            for posting in &term.postings {
                *scores.entry(posting.tool).or_default() += weight * posting.weight;
            }
        }
        for score in scores.values_mut() {
            *score /= square.sqrt();
        }
        scores
    }
}

fn reliability(id: &str, used: &UsageByTool) -> f64 {
    let unused = ToolUsage::default();
    used.get(id).unwrap_or(&unused).reliability()
}

fn namespace(id: &str) -> &str {
    id.split(':').next().unwrap_or_default()
}

impl Hit {
    fn add_alike(&mut self, id: &str) {
        let known = self.alike.iter();
        let known = known.filter(|other| namespace(other) == namespace(id));
        if known.count() < MAX_ALIKE {
            self.alike.push(id.to_owned());
        }
    }
}

/// Copies of one tool are one hit, so that they leave room for others. Who makes many copies hides
/// no tool of another namespace.
fn first_of_each_kind(hits: Vec<Hit>, limit: usize) -> Vec<Hit> {
    let mut kinds: Vec<Hit> = Vec::new();
    for hit in hits {
        let known = kinds
            .iter()
            .position(|kind| is_alike(&kind.tool, &hit.tool));
        match known {
            Some(at) => kinds[at].add_alike(&hit.tool.manifest.id),
            None if kinds.len() == limit => break,
            None => kinds.push(hit),
        }
    }
    kinds
}

fn is_alike(one: &Tool, other: &Tool) -> bool {
    let [one, other] = [&one.manifest, &other.manifest];
    fn parameters(manifest: &Manifest) -> Option<&Value> {
        manifest.parameters.as_ref().map(|schema| &schema.raw)
    }
    one.description == other.description && parameters(one) == parameters(other)
}

/// A word that is there ten times says less than ten times as much.
fn dampened(count: f64) -> f64 {
    (1.0 + count).ln()
}

/// The words of a text or of a tool, with how much each counts.
#[derive(Default)]
struct WordCounts(HashMap<String, f64>);

impl WordCounts {
    fn add(&mut self, words: impl IntoIterator<Item = String>, weight: f64) {
        let stemmer = Stemmer::create(Algorithm::English);
        for word in words {
            let stem = stemmer.stem(&word);
            for group in RELATED.get(&*stem).into_iter().flatten() {
                *self.0.entry(group.clone()).or_default() += weight;
            }
            for c in word
                .chars()
                .filter(|c| word.chars().count() == 2 && is_unspaced(*c))
            {
                *self.0.entry(c.to_string()).or_default() += weight * CHARACTER_WEIGHT;
            }
            let beginning = head(&stem, BEGINNING_CHARS);
            if beginning.len() < stem.len() {
                // No word has a hyphen.
                *self.0.entry(beginning + "-").or_default() += weight * BEGINNING_WEIGHT;
            }
            *self.0.entry(stem.into_owned()).or_default() += weight;
        }
    }
}

fn counts_of(manifest: &Manifest) -> WordCounts {
    let mut counts = WordCounts::default();
    // Where nobody wrote a title it is the name again.
    let names = [&manifest.id, &manifest.display_name];
    let names: BTreeSet<String> = names.into_iter().flat_map(|name| words(name)).collect();
    counts.add(names, NAME_WEIGHT);
    for tag in manifest.tags.iter().chain(&manifest.metadata.category) {
        counts.add(words(tag), TAG_WEIGHT);
    }
    let description = head(&manifest.description, MAX_DESCRIPTION_CHARS);
    counts.add(words(&description), DESCRIPTION_WEIGHT);
    let schema = manifest.parameters.as_ref().map(|schema| &schema.raw);
    let parameters = schema.and_then(|schema| schema["properties"].as_object());
    for name in parameters.into_iter().flatten().map(|(name, _)| name) {
        counts.add(words(name), PARAMETER_WEIGHT);
    }
    counts
}

/// The words of a text in small letters. Names of code are taken apart (`resizeImage`, `PDFReader`,
/// `snake_case`). Of scripts that put no spaces between words each two neighbours are a word. An accent
/// is part of its letter, however it was typed, and `ß` is `ss`, as where a word is in capitals.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut previous = None;
    let mut chars = text.nfc().peekable();
    while let Some(c) = chars.next() {
        let next = chars.peek().copied();
        if is_unspaced(c) {
            words.push(std::mem::take(&mut word));
            let pair = next.filter(|next| is_unspaced(*next));
            let is_alone = !previous.is_some_and(is_unspaced);
            if pair.is_some() || is_alone {
                words.push([c].into_iter().chain(pair).collect());
            }
        } else if c.is_alphanumeric() {
            if begins_word(previous, c, next) {
                words.push(std::mem::take(&mut word));
            }
            match c {
                'ß' | 'ẞ' => word.push_str("ss"),
                c => word.extend(c.to_lowercase()),
            }
        } else {
            words.push(std::mem::take(&mut word));
        }
        previous = Some(c);
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

/// Whether a letter begins a word inside a name: the `I` of `resizeImage`, the `R` of `PDFReader`.
fn begins_word(previous: Option<char>, c: char, next: Option<char>) -> bool {
    let after_small = previous.is_some_and(char::is_lowercase);
    let before_small = next.is_some_and(char::is_lowercase);
    let after_capital = previous.is_some_and(char::is_uppercase);
    c.is_uppercase() && (after_small || after_capital && before_small)
}

/// Chinese, Japanese and Korean characters (Unicode blocks from CJK Radicals on that are letters).
fn is_unspaced(c: char) -> bool {
    c >= '\u{2E80}' && c.is_alphabetic()
}

fn head(text: &str, chars: usize) -> String {
    text.chars().take(chars).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_code_and_unspaced_scripts_are_taken_apart() {
        let found =
            words("resizeImage PDFReader snake_case v2 \u{56fe}\u{7247}\u{538b}\u{7f29}\u{3002}a");
        let expected = [
            "resize",
            "image",
            "pdf",
            "reader",
            "snake",
            "case",
            "v2",
            "\u{56fe}\u{7247}",
            "\u{7247}\u{538b}",
            "\u{538b}\u{7f29}",
            "a",
        ];
        assert_eq!(found, expected);
    }
}
