//! Which interpreter runs a tool is configuration, and the script can tell.

use crate::prelude::*;
const PYTHON_TELLS: &str = "import json, sys\ntry:\n    import only_here\n    package = only_here.WORD\n\
    except ImportError:\n    package = None\n\
    print(json.dumps({'runs': sys.executable, 'prefix': sys.prefix, 'package': package}))\n";

fn policy(playground: &Playground, python: &Path) {
    let rest = format!("[runtimes]\npython = {{ path = \"{}\", why = \"a test\" }}\n", python.display());
    playground.policy("named", "req:named", &rest);
}

/// A virtual environment with one package of its own.
#[test]
fn python_is_the_one_that_policy_names() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    for name in ["usual", "named"] {
        playground.tool_at(&format!("req:{name}"), "python", &format!("{name}/main.py"), PYTHON_TELLS, json!({}));
    }
    let venv = playground.path("venv");
    let mut make = playground.outside(PYTHON);
    make.args(["-I", "-m", "venv", "--without-pip"]).arg(&venv);
    playground.settle();
    let made = finish(make, b"");
    if made.code != Some(0) {
        assert!(std::env::var_os("TOOLHOST_CI").is_none(), "CI must have the venv module: {}", made.stderr);
        return crate::harness::skipped(2, "this Python cannot make virtual environments");
    }
    let lib = fs::read_dir(venv.join("lib")).unwrap().next().unwrap().unwrap().path();
    fs::write(lib.join("site-packages/only_here.py"), "WORD = 'from the environment'\n").unwrap();
    policy(&playground, &venv.join("bin/python"));
    playground.settle();
    let wanted = json!({"runs": venv.join("bin/python"), "prefix": venv, "package": "from the environment"});
    playground.expect("req:named", "{}", &format!("ok {wanted}"));
    // The control: the tool that no policy gives an interpreter has the machine's.
    let usual = playground.expect("req:usual", "{}", "ok");
    assert_eq!(usual.out["outputData"]["package"], json!(null));
    assert!(!usual.out["outputData"]["runs"].as_str().unwrap().starts_with(venv.to_str().unwrap()));
    // A name that leads nowhere runs nothing, and no other interpreter steps in.
    policy(&playground, &venv.join("bin/nowhere"));
    let gone = playground.call("req:named", "{}");
    assert_ne!(gone.out["success"], true, "{:?}", gone.out);
    assert_eq!(gone.out["walls"], json!([]), "nothing was started");
}
