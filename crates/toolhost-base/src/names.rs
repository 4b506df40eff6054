//! Globs over the names of files in one folder.

/// Does a file name match the `names` of an opening? `?` is one character (a Unicode code point),
/// `*` any number of them. Neither matches the leading dot of a hidden file: that must be written.
pub fn name_matches(names: &str, name: &str) -> bool {
    if name.starts_with('.') && !names.starts_with('.') {
        return false;
    }
    let (pattern, name): (Vec<Part>, Vec<char>) = (parts(names).collect(), name.chars().collect());
    let mut at = 0;
    let mut seen = 0;
    // The last `*`, and how far it reaches into the name: one character further each time the rest
    // does not match.
    let mut star = None;
    while seen < name.len() {
        match pattern.get(at) {
            Some(Part::Any) => {
                star = Some((at, seen));
                at += 1;
                continue;
            }
            Some(Part::One) => {}
            Some(Part::Plain(c)) if *c == name[seen] => {}
            _ => {
                let Some((begin, taken)) = star else {
                    return false;
                };
                star = Some((begin, taken + 1));
                (at, seen) = (begin + 1, taken + 1);
                continue;
            }
        }
        (at, seen) = (at + 1, seen + 1);
    }
    pattern[at..].iter().all(|part| *part == Part::Any)
}

#[derive(Clone, Copy, PartialEq)]
pub enum Part {
    Any,
    One,
    Plain(char),
}

/// The parts of a glob: after a backslash, and between brackets, a character stands for itself.
pub fn parts(names: &str) -> impl Iterator<Item = Part> {
    let mut rest = names.chars();
    std::iter::from_fn(move || {
        Some(match rest.next()? {
            '*' => Part::Any,
            '?' => Part::One,
            '\\' => Part::Plain(rest.next()?),
            '[' => {
                let c = rest.next()?;
                rest.next();
                Part::Plain(c)
            }
            c => Part::Plain(c),
        })
    })
}

/// A literal name as a glob that matches just that name.
pub fn escape(name: &str) -> String {
    glob(name, "")
}

/// `*` and `?` of a manifest keep their meaning; all else is literal.
pub fn glob_of_pattern(names: &str) -> String {
    glob(names, "*?")
}

fn glob(name: &str, keep: &str) -> String {
    name.chars()
        .map(|c: char| match c {
            c if keep.contains(c) => c.to_string(),
            '*' | '?' | '[' | ']' | '{' | '}' => format!("[{c}]"),
            '\\' => "\\\\".to_owned(),
            c => c.to_string(),
        })
        .collect()
}

/// The one name that an escaped glob matches; `None` if it can match several.
pub fn literal(names: &str) -> Option<String> {
    let plain = plain(names);
    (escape(&plain) == names).then_some(plain)
}

/// The glob without its escapes, for people.
pub fn plain(names: &str) -> String {
    parts(names)
        .map(|part| match part {
            Part::Any => '*',
            Part::One => '?',
            Part::Plain(c) => c,
        })
        .collect()
}
