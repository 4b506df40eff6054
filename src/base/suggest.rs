//! "Did you mean": the known name nearest to one that was written, or most like it.

/// Longest name that is compared, bytes, and the most it is compared with.
const LONGEST: usize = 128;
const MOST: usize = 1000;

/// The nearest known name, if a typing mistake explains the difference.
pub fn nearest<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A name of megabytes is no typing mistake, and the comparison is quadratic.
    if written.len() > LONGEST {
        return None;
    }
    let folded = written.to_lowercase();
    let near_in_length = |name: &&str| name.len() <= LONGEST && name.len().abs_diff(folded.len()) <= 8;
    known
        .into_iter()
        .filter(near_in_length)
        .take(MOST)
        .map(|name| (strsim::damerau_levenshtein(&folded, &name.to_lowercase()), name))
        .filter(|(distance, name)| *distance <= (name.chars().count().min(folded.chars().count()) / 3).clamp(1, 4))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// `: did you mean 'x'?`, or nothing.
pub fn hint<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(written, known).map_or_else(String::new, |name| format!(": did you mean '{name}'?"))
}

/// The known word most like this one, also where only the start is alike: for short lists, where nearly any hint helps.
pub fn alike<'a>(written: &str, known: impl IntoIterator<Item = &'a str>, least: f64) -> Option<&'a str> {
    // Manifests spell `memoryBytes` what a policy calls `memory_bytes`.
    let plain = |word: &str| -> String { word.to_lowercase().chars().filter(|c| c.is_alphanumeric()).collect() };
    let written = plain(written);
    let rated = known.into_iter().map(|word| (strsim::jaro_winkler(&written, &plain(word)), word));
    rated.filter(|(likeness, _)| *likeness > least).max_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, word)| word)
}
