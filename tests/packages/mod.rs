//! Packages, seen from outside: an index of our own on loopback, through the real binary.

use crate::prelude::*;
mod advisories;
mod approved;
mod built;
mod credential;
mod found;
mod hostile;
mod large;
mod store;

pub use built::{is_reached, public_indexes};

fn settle(playground: &Playground) {
    for folder in ["user_scripts", "sandbox-policies"] {
        for entry in walkdir::WalkDir::new(playground.path(folder))
            .into_iter()
            .map(Result::unwrap)
        {
            std::os::unix::fs::lchown(entry.path(), playground.who.uid(), playground.who.uid())
                .unwrap();
            set_mode(
                entry.path(),
                if entry.file_type().is_dir() {
                    0o755
                } else {
                    0o644
                },
            );
        }
    }
}

fn set_mode(path: impl AsRef<Path>, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A line of a lock file. `hashes`: of an index's files.
fn locked(hashes: &BTreeMap<String, String>, package: &str) -> String {
    let start = package.replace("==", "-");
    let ends = ["-py3-none-any.whl", ".tar.gz", "-py3-none-win_amd64.whl"];
    let hash = ends
        .iter()
        .find_map(|end| hashes.get(&format!("{start}{end}")))
        .unwrap();
    format!("{package} --hash={hash}\n")
}

/// A tool of Python that says which version of `plain` it has, and one of Node for `flat`.
const PLAIN: &str = "import json, plain\nprint(json.dumps(plain.version))\n";
const FLAT: &str = "console.log(JSON.stringify(require('flat')))";

/// What a policy says of files and packages.
fn rules(index: &str, lock: &str, builds: bool, more: &str) -> String {
    let entry = |name: &str, index: &str| {
        format!(
            "{name} = {{ index = \"{index}\", lock = \"{lock}\", builds = {builds}, why = \"a \
            test\" }}\n"
        )
    };
    let [python, node] = [entry("python", index), entry("node", "default")];
    format!(
        "[files]\nread = [{{ path = \"./**\", why = \"a test\" \
        }}]\n[packages]\n{python}{node}{more}\n"
    )
}

/// A running index: `index.py`, in a folder of a playground.
struct Index {
    process: Child,
    folder: PathBuf,
    port: u64,
    hashes: BTreeMap<String, String>,
}

impl Drop for Index {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

impl Index {
    /// `python`: a command that runs it outside.
    fn start(playground: &Playground, mut python: Command, options: &Value) -> Index {
        let folder = playground.path("shop");
        fs::create_dir_all(folder.join("marks")).unwrap();
        fs::write(folder.join("index.py"), include_str!("index.py")).unwrap();
        playground.settle();
        python
            .arg(folder.join("index.py"))
            .arg(&folder)
            .arg(options.to_string());
        let mut process = python
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(process.stdout.take().unwrap())
            .read_line(&mut said)
            .unwrap();
        let said: Value = serde_json::from_str(&said).expect("the index did not start");
        let hashes = serde_json::from_value(said["hashes"].clone()).unwrap();
        Index {
            process,
            folder,
            port: said["port"].as_u64().unwrap(),
            hashes,
        }
    }

    /// Its request log: a path in each line, and the credential that came with it.
    fn log(&self) -> Vec<String> {
        let text = fs::read_to_string(self.folder.join("log.txt")).unwrap_or_default();
        text.lines()
            .map(|line| line.trim_end().to_owned())
            .collect()
    }
}

/// A host, and an index that it knows.
struct IndexedHost {
    playground: Playground,
    index: Index,
    scheme: &'static str,
}

impl IndexedHost {
    fn new(who: Who) -> IndexedHost {
        IndexedHost::open(who, &json!({}))
    }

    /// `options`: of `index.py`.
    fn open(who: Who, options: &Value) -> IndexedHost {
        let playground = Playground::new(who, "/var/tmp");
        let index = Index::start(&playground, playground.outside("/usr/bin/python3"), options);
        let scheme = if options["certificate"].is_null() {
            "http"
        } else {
            "https"
        };
        let shop = IndexedHost {
            playground,
            index,
            scheme,
        };
        shop.configure("");
        shop.policy("default", "required", false, "");
        shop
    }

    /// Writes the host's configuration. `more`: of the index `default`.
    fn configure(&self, more: &str) {
        let way = |name: &str, path: &str, more: &str| {
            format!(
                "{name} = {{ url = \"{}\", ranges = [\"127.0.0.0/8\"]{more} }}\n",
                self.url(path)
            )
        };
        let default = way("python", "simple/", more) + &way("node", "npm/", more);
        let others = ["other", "slow", "far", "hang", "lies"].map(|name| {
            format!(
                "[indexes.{name}]\n{}",
                way("python", &format!("{name}/simple/"), "")
            )
        });
        // At an address that nobody granted.
        let shut = format!(
            "[indexes.shut]\npython = {{ url = \"{}\" }}\n",
            self.url("simple/")
        );
        let config = format!("[indexes.default]\n{default}{}{shut}", others.concat());
        fs::write(self.playground.path("config.toml"), config).unwrap();
    }

    /// Gives rewritten files to the user who runs the host. (The store keeps the modes that the
    /// host gave it.)
    fn settle(&self) {
        settle(&self.playground);
    }

    /// Writes a file for the user who runs the host.
    fn put(&self, path: impl AsRef<Path>, text: impl AsRef<[u8]>) {
        fs::write(path, text).unwrap();
        self.settle();
    }

    /// The one policy, of all tools.
    fn policy(&self, index: &str, lock: &str, builds: bool, more: &str) {
        self.playground
            .policy("default", "*", &rules(index, lock, builds, more));
        self.settle();
    }

    /// A tool of Python with these requirements, locked or not; returns its folder.
    fn requiring(&self, name: &str, requirements: &str, script: &str) -> PathBuf {
        let folder = self.playground.tool(name, "python", script, json!({}));
        self.put(folder.join("requirements.txt"), requirements);
        folder
    }

    /// A tool of Python with these packages, `NAME==VERSION`, locked; returns its folder.
    fn python(&self, name: &str, packages: &[&str], script: &str) -> PathBuf {
        let lines: String = packages
            .iter()
            .map(|package| self.locked(package))
            .collect();
        self.requiring(name, &lines, script)
    }

    /// A tool that asks to write these files, and a policy that allows it; it ends as `fits` says.
    fn writer(&self, name: &str, files: &Path, wanted: &str) {
        let more = json!({"securityContext": {"fileAccess": {"allowWrite": [files]}}});
        self.playground.tool(name, "python", "print(1)\n", more);
        self.playground.allow(
            name,
            &format!("esc:{name}"),
            &["./**"],
            &[files.to_str().unwrap()],
        );
        self.settle();
        self.expect(name, wanted);
    }

    fn locked(&self, package: &str) -> String {
        locked(&self.index.hashes, package)
    }

    fn hash(&self, file: &str) -> &str {
        &self.index.hashes[file]
    }

    fn url(&self, path: &str) -> String {
        format!("{}://127.0.0.1:{}/{path}", self.scheme, self.index.port)
    }

    /// A tool of Node or Bun with these packages, `NAME@VERSION`, locked.
    fn node(&self, name: &str, language: &str, packages: &[&str], script: &str) -> PathBuf {
        let folder = self.playground.tool(name, language, script, json!({}));
        let pairs = || {
            packages
                .iter()
                .map(|package| package.split_once('@').unwrap())
        };
        let wanted: BTreeMap<&str, &str> = pairs().collect();
        let mut places = json!({"": {"name": "x", "version": "1.0.0", "dependencies": wanted}});
        for (name, version) in pairs() {
            let integrity = &self.index.hashes[&format!("{name}-{version}.tgz")];
            let entry = json!({"version": version, "integrity": integrity, "hasInstallScript": name == "hooks"});
            places[format!("node_modules/{name}")] = entry;
        }
        let manifest = json!({"name": "x", "version": "1.0.0", "dependencies": wanted});
        let lock = json!({"name": "x", "version": "1.0.0", "lockfileVersion": 3, "requires": true, "packages": places});
        fs::write(folder.join("package.json"), manifest.to_string()).unwrap();
        self.put(folder.join("package-lock.json"), lock.to_string());
        folder
    }

    /// The host with its configuration.
    fn host(&self, arguments: &[&str]) -> Command {
        let mut command = self.playground.host();
        command
            .arg("--config")
            .arg(self.playground.path("config.toml"))
            .args(arguments);
        command
    }

    fn cli(&self, arguments: &[&str]) -> Ended {
        finish(self.host(arguments), b"")
    }

    fn call(&self, tool: &str) -> Ended {
        self.cli(&["call", tool, "--json", "--input", "{}"])
    }

    fn deps(&self, arguments: &[&str]) -> Ended {
        self.cli(&[&["deps"], arguments].concat())
    }

    /// The output of `deps VERB`, which succeeds.
    fn deps_good(&self, arguments: &[&str]) -> String {
        let ended = self.deps(arguments);
        assert_eq!(
            ended.code,
            Some(0),
            "{arguments:?}: {} {}",
            ended.text(),
            ended.stderr
        );
        ended.text()
    }

    /// Calls `esc:TOOL`, which ends as `fits` says.
    #[track_caller]
    fn expect(&self, tool: &str, wanted: &str) -> Ended {
        let ended = self.call(&format!("esc:{tool}"));
        fits(wanted, &ended)
            .unwrap_or_else(|why| panic!("{tool} as {:?}: {why}", self.playground.who));
        ended
    }

    fn log(&self) -> Vec<String> {
        self.index.log()
    }

    /// Whether a request to the index had this in its path.
    fn was_asked(&self, part: &str) -> bool {
        self.log().iter().any(|line| line.contains(part))
    }

    fn marks(&self) -> usize {
        fs::read_dir(self.index.folder.join("marks"))
            .unwrap()
            .count()
    }

    fn store(&self) -> PathBuf {
        self.playground.path("state/packages")
    }

    /// The trees of its entries, and leftovers of builds.
    fn trees(&self) -> Vec<String> {
        let names = fs::read_dir(self.store()).into_iter().flatten().flatten();
        let folders = names.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        folders
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()
    }
}
