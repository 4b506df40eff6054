//! Which interpreter runs a tool is configuration, and the script can tell.

use crate::prelude::*;

const PYTHON_TELLS: &str = "import json, sys\ntry:\n    import only_here\n    package = only_here.WORD\n\
    except ImportError:\n    package = None\n\
    print(json.dumps({'runs': sys.executable, 'prefix': sys.prefix, 'package': package}))\n";

/// A virtual environment with one package of its own.
#[test]
fn python_is_the_one_that_policy_names() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    for name in ["usual", "named"] {
        playground.tool(name, "python", PYTHON_TELLS, json!({}));
    }
    let venv = playground.path("venv");
    let policy = |python: &Path| {
        let rest = format!("[runtimes]\npython = {{ path = \"{}\", why = \"a test\" }}\n", python.display());
        playground.policy("named", "esc:named", &rest);
    };
    let mut make = playground.outside(PYTHON);
    make.args(["-I", "-m", "venv", "--without-pip"]).arg(&venv);
    playground.settle();
    let made = finish(make, b"");
    if made.code != Some(0) {
        assert!(std::env::var_os("TOOLHOST_CI").is_none(), "CI must have the venv module: {}", made.stderr);
        return skipped(2, "this Python cannot make virtual environments");
    }
    let lib = fs::read_dir(venv.join("lib")).unwrap().next().unwrap().unwrap().path();
    fs::write(lib.join("site-packages/only_here.py"), "WORD = 'from the environment'\n").unwrap();
    policy(&venv.join("bin/python"));
    playground.settle();
    let wanted = json!({"runs": venv.join("bin/python"), "prefix": venv, "package": "from the environment"});
    playground.expect("esc:named", "{}", &format!("ok {wanted}"));
    // The control: the tool that no policy gives an interpreter has the machine's.
    let usual = playground.expect("esc:usual", "{}", "ok").out["outputData"].clone();
    assert_eq!(usual["package"], json!(null));
    assert!(!usual["runs"].as_str().unwrap().starts_with(venv.to_str().unwrap()));
    // A name that leads nowhere runs nothing, and no other interpreter steps in.
    policy(&venv.join("bin/nowhere"));
    let gone = playground.call("esc:named", "{}").out;
    assert!(gone["success"] != true && gone["walls"] == json!([]), "nothing was started: {gone}");
}
