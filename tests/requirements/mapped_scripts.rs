//! A store to a mapped page changes no times of a file. What was read once is what a person
//! approves, what the record names, and what runs: never other bytes under that digest.

use crate::prelude::*;
use std::io::BufRead;

/// Holds a file mapped, and stores three letters over the earlier ones for each line that it reads.
const HOLDER: &str = "import mmap, sys\nfile = open(sys.argv[1], 'r+b')\npage = \
                      mmap.mmap(file.fileno(), 0)\nat = page.find(b'old')\nfor line in \
                      sys.stdin:\n    page[at:at + 3] = line.strip().encode()\n    print('stored', \
                      flush=True)\n";

/// Another process, which holds a file mapped and can write it although no file of its own is open
/// any more.
pub struct Holder {
    child: Child,
    answers: std::io::BufReader<std::process::ChildStdout>,
    path: PathBuf,
}

impl Holder {
    /// `path`: in a file system in memory, whose files keep their times however often a mapped page
    /// is stored to.
    pub fn of(path: &Path) -> Holder {
        let mut command = Command::new("python3");
        command
            .args(["-c", HOLDER])
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let answers = std::io::BufReader::new(child.stdout.take().unwrap());
        Holder {
            child,
            answers,
            path: path.to_owned(),
        }
    }

    /// The control: no stamp of the file shows it.
    pub fn store(&mut self, word: &str) {
        let was = toolhost::base::files::Stamp::at(&self.path).unwrap();
        writeln!(self.child.stdin.as_mut().unwrap(), "{word}").unwrap();
        self.answers.read_line(&mut String::new()).unwrap();
        assert!(fs::read_to_string(&self.path).unwrap().contains(word));
        assert_eq!(toolhost::base::files::Stamp::at(&self.path).unwrap(), was);
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// It sees no file but itself below /dev/shm, so it waits by the clock.
const PYTHON: &str = "import hashlib, json, pathlib, sys, \
                      time\ntime.sleep(json.load(sys.stdin).get('seconds', \
                      0))\nprint(json.dumps({'said': 'old', 'read': \
                      hashlib.sha256(pathlib.Path(__file__).read_bytes()).hexdigest()}))\n";
const NODE: &str = "console.log(JSON.stringify({said: 'old'}))\n";

/// What a call said: its record names the digest of the script that says this, as does the tool
/// that reads itself.
fn said(playground: &Playground, script: &str, answer: &Value) -> String {
    let content = &answer["result"]["structuredContent"];
    let said = content["said"]
        .as_str()
        .unwrap_or_else(|| panic!("{answer}"));
    let ran = toolhost::base::sha256_hex(script.replace("old", said).as_bytes());
    assert!(
        content["read"].as_str().is_none_or(|read| read == ran),
        "{answer}"
    );
    assert_eq!(
        playground.records().pop().unwrap()["digests"]["script"],
        json!(ran),
        "{said}: {answer}"
    );
    said.to_owned()
}

fn what_is_named_is_what_runs(who: Who) {
    let module = include_str!("languages.wat").replace("DATA", "{\\22said\\22: \\22old\\22}");
    let module = module.replace("BODY", "(call $say (i32.const 1) (i32.const 15))");
    for (language, file, script) in [
        ("python", "main.py", PYTHON),
        ("nodejs", "main.js", NODE),
        ("wasm", "main.wat", &module),
    ] {
        if !has(language, 1) {
            continue;
        }
        let playground = Playground::new(who, "/dev/shm");
        let path = format!("mapped/{file}");
        let folder = playground.tool_at("req:mapped", language, &path, script, json!({}));
        playground.settle();
        let mut holder = Holder::of(&folder.join(file));
        let mut host = playground.host();
        host.args(["serve", "--stdio"]);
        let mut server = Server::with(host);
        let mut call = || said(&playground, script, &server.called("req:mapped", json!({})));
        assert_eq!(call(), "old");
        // The decision and a launcher wait for the next call.
        holder.store("new");
        let second = call();
        assert_eq!(
            second,
            if language == "wasm" { "old" } else { "new" },
            "{language}: all is read again, or nothing"
        );
        if language != "python" {
            continue;
        }
        holder.store("old");
        let id = server.call("req:mapped", json!({"seconds": 8}));
        // The holder and the tool.
        playground.runs(&format!("user_scripts/{path}"), 2);
        holder.store("new");
        let answer = server.answers(&[id]).remove(&id).unwrap();
        assert_eq!(
            said(&playground, script, &answer),
            "old",
            "it reads itself as it was approved"
        );
    }
}

#[test]
fn what_is_named_is_what_runs_as_root() {
    what_is_named_is_what_runs(Who::Root);
}
#[test]
fn what_is_named_is_what_runs_as_a_user() {
    what_is_named_is_what_runs(Who::User);
}
