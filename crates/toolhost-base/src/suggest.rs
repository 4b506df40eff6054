//! "Did you mean": the known name nearest to one that was written.

/// Longest name that is compared, bytes, and the most it is compared with: the comparison is
/// quadratic.
const MAX_NAME_BYTES: usize = 128;
const MAX_NAMES: usize = 1000;

/// The nearest known name, if a typing mistake, another style (`memoryBytes`, `memory_bytes`) or a
/// missing end (`node`, `nodejs`) explains the difference.
pub fn nearest<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    fn plain(name: &str) -> String {
        name.to_lowercase()
            .chars()
            .filter(|c| !matches!(c, '_' | '-'))
            .collect()
    }
    let folded = plain(written);
    let near = known
        .into_iter()
        .filter(|name: &&str| {
            name.len() <= MAX_NAME_BYTES && name.len().abs_diff(folded.len()) <= 8
        })
        .take(MAX_NAMES)
        .map(|name| {
            let other = plain(name);
            let shorter = other.chars().count().min(folded.chars().count());
            let most = if shorter > 2 && other.starts_with(&folded) {
                usize::MAX
            } else {
                (shorter / 3).clamp(1, 4)
            };
            (strsim::damerau_levenshtein(&folded, &other), most, name)
        });
    near.filter(|(distance, most, _)| distance <= most)
        .min_by_key(|(distance, ..)| *distance)
        .map(|(.., name)| name)
}

/// `: did you mean 'x'?`, or nothing.
pub fn hint<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(written, known).map_or_else(String::new, |name| format!(": did you mean '{name}'?"))
}
