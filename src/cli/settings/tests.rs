//! Where settings come from, and what of them is refused.

use super::*;
use std::os::unix::fs::PermissionsExt;

fn settings(flags: &Flags, variables: &[(&str, &Path)]) -> anyhow::Result<Settings> {
    let variables: BTreeMap<String, OsString> =
        variables.iter().map(|(name, value)| ((*name).to_owned(), value.as_os_str().to_owned())).collect();
    Settings::from(flags, &|name| variables.get(name).cloned())
}

fn folders(names: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in names {
        std::fs::create_dir_all(folder.path().join(name)).unwrap();
    }
    folder
}

#[test]
fn a_flag_beats_a_variable_beats_the_config_beats_the_root() {
    let folder = folders(&["tool-defs", "user_scripts", "sandbox-policies", "a", "b", "c", "home"]);
    let at = |name: &str| folder.path().join(name).canonicalize().unwrap();
    let config = folder.path().join("config.toml");
    std::fs::write(&config, "tools = [\"c\"]\nlog = \"debug,json\"\ncapabilities = [\"env:TOKEN\"]\n").unwrap();
    std::fs::set_permissions(&config, std::fs::Permissions::from_mode(0o644)).unwrap();
    let home = at("home");
    let base = Flags { root: Some(at(".")), ..Flags::default() };

    let plain = settings(&base, &[("HOME", &home)]).unwrap();
    assert_eq!((plain.tools.clone(), plain.scripts.clone()), (vec![at("tool-defs")], vec![at("user_scripts")]));
    assert_eq!(plain.policies, Some(at("sandbox-policies")));
    assert_eq!(plain.scanned(), [at("tool-defs"), at("user_scripts")]);
    assert_eq!(plain.bases(), [at("user_scripts"), at("tool-defs")]);
    assert_eq!(plain.origins["tools"], Origin::Root);

    let flags = Flags { config: Some(config.clone()), ..base.clone() };
    let configured = settings(&flags, &[("HOME", &home)]).unwrap();
    assert_eq!(configured.tools, [at("c")]);
    assert_eq!(configured.log, Some((Level::Debug, true)));
    assert!(configured.capabilities.contains("env:TOKEN"));
    let varied = settings(&flags, &[("HOME", &home), ("TOOLHOST_TOOLS", &at("b"))]).unwrap();
    assert_eq!(
        (varied.tools.clone(), varied.origins["tools"].clone()),
        (vec![at("b")], Origin::Environment("TOOLHOST_TOOLS".into()))
    );
    let flagged = Flags { tools: vec![at("a")], ..flags };
    assert_eq!(settings(&flagged, &[("TOOLHOST_TOOLS", &at("b"))]).unwrap().tools, [at("a")]);
}

#[test]
fn what_is_named_must_be_there_and_be_ours() {
    let folder = folders(&["home"]);
    let missing = folder.path().join("missing");
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    for flags in [
        Flags { root: Some(missing.clone()), ..Flags::default() },
        Flags { tools: vec![missing.clone()], ..Flags::default() },
        Flags { policies: Some(missing.clone()), ..Flags::default() },
        Flags { root: Some(file.clone()), ..Flags::default() },
        Flags { tools: vec![file.clone()], ..Flags::default() },
        Flags { scripts: vec![file.clone()], ..Flags::default() },
        Flags { config: Some(missing.clone()), ..Flags::default() },
        Flags { log: Some("loud".into()), ..Flags::default() },
    ] {
        assert!(settings(&flags, &[]).is_err(), "{flags:?}");
    }
    let config = folder.path().join("config.toml");
    let flags = Flags { config: Some(config.clone()), ..Flags::default() };
    std::fs::write(&config, "").unwrap();
    std::fs::set_permissions(&config, std::fs::Permissions::from_mode(0o666)).unwrap();
    assert!(settings(&flags, &[]).unwrap_err().to_string().contains("others can write it"));
    std::fs::set_permissions(&config, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert!(settings(&flags, &[]).is_ok());
    std::fs::write(&config, "[tool_ids]\nfirst = 200000\ncount = 16\n").unwrap();
    assert_eq!(settings(&flags, &[]).unwrap().tool_ids, 200_000..200_016);
    std::fs::write(&config, "[tool_ids]\nfirst = 1000\ncount = 16\n").unwrap();
    assert!(settings(&flags, &[]).unwrap_err().to_string().contains("[tool_ids]: first must be at least 65536"));
    std::fs::write(&config, "capabilities = [\"long-running\"]\n").unwrap();
    assert!(settings(&flags, &[]).unwrap_err().to_string().contains("`long-running` is not built yet"));
    std::fs::write(&config, "rot = \"/\"\n").unwrap();
    assert!(settings(&flags, &[]).unwrap_err().to_string().contains("rot"));
}

#[test]
fn the_audit_log_lies_in_the_state_folder() {
    let folder = folders(&["state", "home"]);
    let state = folder.path().join("state");
    let found = settings(&Flags::default(), &[("XDG_STATE_HOME", &state)]).unwrap().audit_log;
    assert_eq!(found, Some(state.join("toolhost/audit.jsonl")));
}
