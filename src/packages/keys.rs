//! What each known key of a project file does to what is installed: `keys.txt`.

const TABLE: &str = include_str!("keys.txt");

/// A row of the table.
pub(super) struct Row<'t> {
    pub table: &'t str,
    pub effect: &'t str,
    pub keys: &'t str,
    pub why: &'t str,
}

pub(super) fn rows() -> impl Iterator<Item = Row<'static>> {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| {
        let mut parts = line.splitn(4, '|');
        Some(Row {
            table: parts.next()?,
            effect: parts.next()?,
            keys: parts.next()?,
            why: parts.next()?,
        })
    })
}

/// Why a key is refused; `None`: it is honoured, or changes nothing.
pub(super) fn refusal(table: &str, key: &str, has_lock: bool) -> Option<&'static str> {
    let mut of_table = rows().filter(|row| row.table == table);
    let row = of_table.find(|row| row.keys == "*" || row.keys.split(' ').any(|one| one == key))?;
    let is_refused = row.effect == "refused" || row.effect == "lock" && !has_lock;
    is_refused.then_some(row.why)
}
