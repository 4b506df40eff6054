//! `completions` and `man`: the shells themselves complete with what is printed, and the pages are those of the verbs.

use crate::prelude::*;

/// What the program prints, which says nothing beside it.
fn printed(arguments: &[&str]) -> String {
    let output = Command::new(binary()).args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// What a shell says after it has read the completions, or nothing where it is not installed.
fn said(shell: &str, flags: &[&str], script: &str) -> Option<BTreeSet<String>> {
    if found(shell).is_none() {
        skipped(1, &format!("{shell} is not installed"));
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("it"), printed(&["completions", shell])).unwrap();
    let mut command = Command::new(shell);
    command.current_dir(&folder).env("HOME", folder.path());
    let output = command.args(flags).args(["-c", script]).output().unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{shell}: {output:?}"
    );
    let text = String::from_utf8(output.stdout).unwrap();
    let first = |line: &str| line.split('\t').next().unwrap_or_default().to_owned();
    Some(text.lines().map(first).collect())
}

/// Asks bash's own completion function about a line whose last word is not finished.
fn by_bash(words: &str) -> Option<BTreeSet<String>> {
    let script = format!(
        ". ./it; complete -p toolhost > /dev/null; COMP_WORDS=(toolhost {words}); \
         COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
         _toolhost toolhost \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD - 1]}}\"; \
         printf '%s\\n' \"${{COMPREPLY[@]}}\""
    );
    said("bash", &["--norc", "--noprofile"], &script)
}

fn set(words: &[&str]) -> BTreeSet<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn shells_complete_verbs_flags_and_values() {
    for (words, wanted) in [
        ("cal", set(&["call"])),
        ("call --output-d", set(&["--output-dir"])),
        ("schema ''", set(&["callers", "manifest", "policy"])),
    ] {
        let Some(replies) = by_bash(words) else { break };
        assert!(wanted.is_subset(&replies), "{words}: {replies:?}");
        assert!(words != "cal" || replies == wanted, "{replies:?}");
    }
    if let Some(replies) = said("fish", &[], ". ./it; complete -C 'toolhost cal'") {
        assert_eq!(replies, set(&["call"]));
    }
    // It completes only at a terminal; here it reads the functions and binds them.
    let zsh = said(
        "zsh",
        &["-f"],
        "autoload -U compinit; compinit -D -u; . ./it; print $_comps[toolhost]",
    );
    assert!(zsh.is_none_or(|names| names == set(&["_toolhost"])));
}

#[test]
fn each_verb_has_its_page() {
    let folder = tempfile::tempdir().unwrap();
    printed(&["man", folder.path().to_str().unwrap()]);
    let page = fs::read_to_string(folder.path().join("toolhost-call.1")).unwrap();
    assert!(page.contains(".SH NAME\ntoolhost\\-call"), "{page}");
    let whole = fs::read_to_string(folder.path().join("toolhost.1")).unwrap();
    assert_eq!(whole, printed(&["man"]));
    assert!(whole.contains("toolhost\\-doctor(1)"), "{whole}");
    let missing = Command::new(binary())
        .args(["man", "/nowhere/at/all"])
        .output()
        .unwrap();
    assert_eq!(missing.status.code(), Some(2), "{missing:?}");
}
