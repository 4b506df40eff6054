//! Packages, seen from outside: an index of our own on loopback, through the real binary.

mod approved;
mod built;
mod credential;
mod found;
mod hostile;
mod large;
mod store;

use crate::harness::{Ended, Playground, Who, finish};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

fn settle(playground: &Playground) {
    for folder in ["user_scripts", "sandbox-policies"] {
        for entry in walkdir::WalkDir::new(playground.path(folder)).into_iter().map(Result::unwrap) {
            if let Some(uid) = playground.who.uid() {
                std::os::unix::fs::lchown(entry.path(), Some(uid), Some(uid)).unwrap();
            }
            let mode = if entry.file_type().is_dir() { 0o755 } else { 0o644 };
            fs::set_permissions(entry.path(), fs::Permissions::from_mode(mode)).unwrap();
        }
    }
}

/// A line of a lock. `hashes`: of the files of an index.
fn locked(hashes: &BTreeMap<String, String>, package: &str) -> String {
    let (name, version) = package.split_once("==").unwrap();
    let start = format!("{name}-{version}");
    let ends = ["-py3-none-any.whl", ".tar.gz", "-py3-none-win_amd64.whl"];
    let hash = ends.iter().find_map(|end| hashes.get(&format!("{start}{end}"))).unwrap();
    format!("{package} --hash={hash}\n")
}

/// A host, and an index that it knows.
pub struct Shop {
    pub playground: Playground,
    pub folder: PathBuf,
    index: Child,
    scheme: &'static str,
    port: u64,
    hashes: BTreeMap<String, String>,
}

impl Drop for Shop {
    fn drop(&mut self) {
        drop(self.index.stdin.take());
        let _ = self.index.wait();
    }
}

impl Shop {
    pub fn new(who: Who) -> Shop {
        Shop::stocked(who, &[])
    }

    /// With packages that take long to make.
    pub fn stocked(who: Who, stock: &[&str]) -> Shop {
        Shop::open(who, json!({"stock": stock}))
    }

    /// An index that shows this certificate (and its key).
    pub fn over_tls(who: Who, certificate: &str) -> Shop {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), certificate).unwrap();
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o644)).unwrap();
        Shop::open(who, json!({"certificate": file.path()}))
    }

    fn open(who: Who, options: Value) -> Shop {
        let playground = Playground::new(who, "/var/tmp");
        let folder = playground.path("shop");
        fs::create_dir_all(folder.join("marks")).unwrap();
        fs::write(folder.join("index.py"), include_str!("index.py")).unwrap();
        playground.settle();
        let mut index = playground.outside("/usr/bin/python3");
        index.arg(folder.join("index.py")).arg(&folder).arg(options.to_string());
        index.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut index = index.spawn().unwrap();
        let mut said = String::new();
        BufReader::new(index.stdout.take().unwrap()).read_line(&mut said).unwrap();
        let said: Value = serde_json::from_str(&said).expect("the index did not start");
        let hashes = serde_json::from_value(said["hashes"].clone()).unwrap();
        let scheme = if options["certificate"].is_null() { "http" } else { "https" };
        let shop = Shop { playground, folder, index, scheme, port: said["port"].as_u64().unwrap(), hashes };
        shop.configure("");
        shop.policy("default", "required", false, "");
        shop
    }

    /// Writes the host's configuration. `more`: of the index `default`.
    pub fn configure(&self, more: &str) {
        let shop = self;
        let way = |name: &str, path: &str| {
            let url = shop.url(path);
            format!("[indexes.{name}]\npython = {{ url = \"{url}\", ranges = [\"127.0.0.0/8\"]{more} }}\n")
        };
        let ways = ["other", "slow", "far", "hang", "lies"];
        let mut config = way("default", "simple/");
        let npm = shop.url("npm/");
        config += &format!("node = {{ url = \"{npm}\", ranges = [\"127.0.0.0/8\"]{more} }}\n");
        config.extend(ways.iter().map(|name| way(name, &format!("{name}/simple/"))));
        // At an address that nobody granted.
        config += &format!("[indexes.shut]\npython = {{ url = \"{}\" }}\n", shop.url("simple/"));
        fs::write(shop.playground.path("config.toml"), config).unwrap();
    }

    /// What was written anew belongs to who runs the host. (The store keeps the modes that the host gave it.)
    pub fn settle(&self) {
        settle(&self.playground);
    }

    /// The one policy, of all tools.
    pub fn policy(&self, index: &str, lock: &str, builds: bool, more: &str) {
        let entry = |name: &str, index: &str| {
            format!("{name} = {{ index = \"{index}\", lock = \"{lock}\", builds = {builds}, why = \"a test\" }}\n")
        };
        let rest = format!(
            "[files]\nread = [{{ path = \"./**\", why = \"a test\" }}]\n[packages]\n{}{}{more}\n",
            entry("python", index),
            entry("node", "default"),
        );
        self.playground.policy("default", "*", &rest);
        self.settle();
    }

    /// A tool of Python with these packages, `NAME==VERSION`, locked; returns its folder.
    pub fn python(&self, name: &str, packages: &[&str], script: &str) -> PathBuf {
        let folder = self.playground.tool(name, "python", script, json!({}));
        let lines: Vec<String> = packages.iter().map(|package| self.locked(package)).collect();
        fs::write(folder.join("requirements.txt"), lines.concat()).unwrap();
        self.settle();
        folder
    }

    /// A line of a lock.
    pub fn locked(&self, package: &str) -> String {
        locked(&self.hashes, package)
    }

    /// The hash of a file of the index.
    pub fn hash(&self, file: &str) -> &str {
        &self.hashes[file]
    }

    /// The address of a file of the index.
    pub fn url(&self, path: &str) -> String {
        format!("{}://127.0.0.1:{}/{path}", self.scheme, self.port)
    }

    /// A tool of Node or Bun with these packages, `NAME@VERSION`, locked.
    pub fn node(&self, name: &str, language: &str, packages: &[&str], script: &str) -> PathBuf {
        let folder = self.playground.tool(name, language, script, json!({}));
        let pairs = || packages.iter().map(|package| package.split_once('@').unwrap());
        let wanted: BTreeMap<&str, &str> = pairs().collect();
        let mut places = json!({"": {"name": "x", "version": "1.0.0", "dependencies": wanted}});
        for (name, version) in pairs() {
            let integrity = &self.hashes[&format!("{name}-{version}.tgz")];
            let scripted = name == "hooks";
            places[format!("node_modules/{name}")] =
                json!({"version": version, "integrity": integrity, "hasInstallScript": scripted});
        }
        let manifest = json!({"name": "x", "version": "1.0.0", "dependencies": wanted});
        let lock = json!({"name": "x", "version": "1.0.0", "lockfileVersion": 3, "requires": true, "packages": places});
        fs::write(folder.join("package.json"), manifest.to_string()).unwrap();
        fs::write(folder.join("package-lock.json"), lock.to_string()).unwrap();
        self.settle();
        folder
    }

    /// The host with its configuration.
    pub fn host(&self, arguments: &[&str]) -> Command {
        let mut command = self.playground.host();
        command.arg("--config").arg(self.playground.path("config.toml")).args(arguments);
        command
    }

    pub fn call(&self, tool: &str) -> Ended {
        finish(self.host(&["call", tool, "--json", "--input", "{}"]), b"")
    }

    pub fn deps(&self, arguments: &[&str]) -> Ended {
        finish(self.host(&[&["deps"], arguments].concat()), b"")
    }

    /// What was asked of the index, a path in each line.
    pub fn log(&self) -> Vec<String> {
        let text = fs::read_to_string(self.folder.join("log.txt")).unwrap_or_default();
        text.lines().map(|line| line.trim_end().to_owned()).collect()
    }

    /// What packages left outside.
    pub fn marks(&self) -> Vec<String> {
        let names = fs::read_dir(self.folder.join("marks")).unwrap().flatten();
        names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    /// The store.
    pub fn store(&self) -> PathBuf {
        self.playground.path("state/packages")
    }

    /// The trees of its entries, and what builds left.
    pub fn trees(&self) -> Vec<String> {
        let names = fs::read_dir(self.store()).into_iter().flatten().flatten();
        let folders = names.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        folders.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }
}
