//! `docs/scale`: what it tells people to write is what the binary takes.

use crate::prelude::*;
use crate::shipped;
use std::os::unix::net::UnixStream;

fn guide(name: &str) -> String {
    let path = shipped::repository().join("docs").join(name);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The config file of the ConfigMap.
fn config_map(manifest: &str) -> String {
    let lines = manifest
        .lines()
        .skip_while(|line| line.trim() != "config.toml: |")
        .skip(1);
    lines
        .map_while(|line| line.strip_prefix("    "))
        .map(|line| format!("{line}\n"))
        .collect()
}

/// The fenced `toml` blocks.
fn blocks(text: &str) -> Vec<String> {
    let of = |block: &str| block.split("```").next().unwrap_or_default().to_owned();
    text.split("```toml\n").skip(1).map(of).collect()
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let kept = tempfile::tempdir().unwrap();
    let folder = kept.path().canonicalize().unwrap();
    shipped::copy_to(&folder);
    (kept, folder)
}

fn toolhost(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_toolhost"));
    command
        .env("XDG_STATE_HOME", folder.join("state"))
        .env("XDG_CACHE_HOME", folder.join("cache"));
    command
        .env("BROKER_PASSWORD", "correct horse")
        .stdin(Stdio::null());
    command
}

#[test]
#[ignore = "second stage (.ci/full): needs a message broker"]
fn every_config_file_is_taken_with_the_tools_that_are_shipped() {
    let (_kept, folder) = folder();
    let mut configs = vec![
        guide("scale/config.toml"),
        config_map(&guide("scale/kubernetes.yaml")),
    ];
    configs.extend(blocks(&guide("reference/SCALE.md")));
    assert!(configs.len() >= 3, "{configs:?}");
    for config in configs {
        let file = folder.join("config.toml");
        fs::write(&file, &config).unwrap();
        let read: toml::Table = config.parse().unwrap_or_else(|e| panic!("{config}\n{e}"));
        let entry = &read["broker"][0];
        let request = format!("request:tg:{}", entry["service"].as_str().unwrap());
        for tool in entry["tools"].as_array().unwrap() {
            let mut command = toolhost(&folder);
            command
                .arg("--root")
                .arg(&folder)
                .arg("--config")
                .arg(&file);
            command.args(["trustgraph", "export", tool.as_str().unwrap(), "--json"]);
            let ended = finish(command, b"");
            assert_eq!(ended.code, Some(0), "{config}\n{}", ended.stderr);
            assert_eq!(
                ended.out["tool-service"]["value"]["request-queue"], request,
                "{}",
                ended.out
            );
        }
    }
}

fn asked(socket: &Path, path: &str) -> Option<String> {
    let mut stream = UnixStream::connect(socket).ok()?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )
    .ok()?;
    let mut said = String::new();
    stream.read_to_string(&mut said).ok()?;
    Some(said)
}

#[test]
#[ignore = "second stage (.ci/full): needs a message broker"]
fn what_the_image_starts_answers_where_the_probes_ask() {
    let (_kept, folder) = folder();
    let config = guide("scale/config.toml");
    fs::write(
        folder.join("config.toml"),
        config.replace("rabbitmq:5672", "127.0.0.1:9"),
    )
    .unwrap();
    fs::create_dir_all(folder.join("state")).unwrap();
    let image = guide("scale/Dockerfile");
    let (_, entry) = image.split_once("ENTRYPOINT ").expect("an ENTRYPOINT");
    let entry: Vec<String> =
        serde_json::from_str(&entry.replace("\\\n", " ")).expect("its JSON form");
    let here = |word: &str| {
        let word = word.replace("/srv/tools", &folder.to_string_lossy());
        let word = word.replace(
            "/etc/toolhost/config.toml",
            &folder.join("config.toml").to_string_lossy(),
        );
        word.replace("/var/lib/toolhost", &folder.join("state").to_string_lossy())
    };
    let mut command = toolhost(&folder);
    let mut host = command
        .args(entry.iter().skip(1).map(|word| here(word)))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let at = "/var/lib/toolhost/http.sock";
    assert!(
        entry.last().is_some_and(|word| word.ends_with(at)),
        "{entry:?}"
    );
    for (file, probes) in [
        ("compose.yaml", &["readyz"][..]),
        ("kubernetes.yaml", &["readyz", "healthz"]),
    ] {
        let text = guide(&format!("scale/{file}"));
        for probe in probes {
            let words = format!("--unix-socket, {at}, \"http://localhost/{probe}\"");
            assert!(text.contains(&words), "{file}: {words}");
        }
    }
    let socket = folder.join("state/http.sock");
    wait_for("the socket answers", || {
        asked(&socket, "/healthz").is_some_and(|said| said.contains("200 OK"))
    });
    let said = asked(&socket, "/readyz").unwrap();
    host.kill().unwrap();
    host.wait().unwrap();
    assert!(
        said.contains("503") && said.contains("a broker is away"),
        "{said}"
    );
}
