//! The pages lead somewhere: their links, the index, and the tests that SECURITY.md names.

use crate::prelude::*;

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A heading as the end of an address.
fn anchor(line: &str) -> String {
    let words = line.trim_start_matches('#').trim().to_lowercase();
    let kept = words
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().replace(' ', "-")
}

/// Empty: any heading will do.
fn has_heading(text: &str, heading: &str) -> bool {
    let mut headings = text.lines().filter(|line| line.starts_with('#'));
    headings.any(|line| heading.is_empty() || anchor(line) == heading)
}

#[test]
fn every_link_leads_to_a_page_and_its_heading() {
    let beside = ["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(repository);
    let mut tried = 0;
    for page in pages_of_docs().into_iter().chain(beside) {
        let own = text(&page);
        let links = own
            .split("](")
            .skip(1)
            .map(|rest| rest.split(')').next().unwrap());
        for link in links.filter(|link| !link.contains("://")) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => page.clone(),
                _ => page.parent().unwrap().join(file),
            };
            let place = format!("{}: {link}", page.display());
            assert!(target.exists(), "{place}: there is no such file");
            let is_page = target.extension().is_some_and(|end| end == "md");
            assert!(
                !is_page || has_heading(&text(&target), heading),
                "{place}: there is no such heading"
            );
            tried += 1;
        }
    }
    assert!(tried > 100, "{tried}");
}

/// Who adds a page says in docs/README.md whom it is for.
#[test]
fn the_index_has_every_page_once() {
    let index = text(&repository("docs/README.md"));
    let rows = index.lines().filter(|line| line.starts_with("| ["));
    let mut listed: Vec<&str> = rows
        .map(|row| row.split(['(', ')']).nth(1).unwrap())
        .collect();
    listed.sort_unstable();
    let docs = repository("docs");
    let pages = pages_of_docs();
    let names = pages
        .iter()
        .map(|path| path.strip_prefix(&docs).unwrap().to_str().unwrap());
    let mut there: Vec<&str> = names.filter(|name| *name != "README.md").collect();
    there.sort_unstable();
    assert_eq!(listed, there);
}

#[test]
fn the_table_of_threats_names_tests_that_there_are() {
    let page = text(&repository("docs/SECURITY.md"));
    let table = page.split("\n## ").find(|part| part.starts_with("Threats"));
    let rows = table.unwrap().lines().filter(|line| line.starts_with("| "));
    let spans = rows.flat_map(|row| row.split('|').nth(3).unwrap().split('`').skip(1).step_by(2));
    let names: Vec<&str> = spans.collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        let (module, test) = name.rsplit_once("::").unwrap();
        let module = repository("tests").join(module.replace("::", "/"));
        let file = [module.with_extension("rs"), module.join("mod.rs")];
        let file = file.iter().find(|file| file.exists());
        let file = file.unwrap_or_else(|| panic!("{name}: there is no such file"));
        let is_test = text(file).contains(&format!("fn {test}("));
        assert!(is_test, "{name} is no test of {}", file.display());
    }
}
