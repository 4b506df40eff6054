//! Where MCP clients keep their servers on Linux, as data: for `mcp import` and `mcp install`.

use super::super::settings;
use std::path::{Path, PathBuf};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syntax {
    /// JSON, with comments where the client takes them.
    Json,
    Toml,
    /// No crate edits it and keeps comments: it is not read, and for it lines are printed.
    Yaml,
}

#[derive(Debug)]
pub struct Client {
    /// As `--client` names it.
    pub name: &'static str,
    pub syntax: Syntax,
    /// The user's file, below the home folder.
    pub user: &'static str,
    /// A variable that names another folder for the user's file.
    pub folder_variable: Option<&'static str>,
    /// The files of a project, below its folder.
    pub project: &'static [&'static str],
    /// The members that lead to the servers, the newest form last.
    pub servers: &'static [&'static [&'static str]],
    /// How a value begins that names a variable of the client. The client keeps all else as text.
    pub references: &'static [&'static str],
}

/// What any file counts as that is not a known client's. A bare `$` begins passwords, too.
pub const REFERENCES: &[&str] = &["${env:", "{env:", "${"];

const MCP_SERVERS: &[&[&str]] = &[&["mcpServers"]];

pub const CLIENTS: [Client; 10] = [
    Client {
        name: "claude-code",
        syntax: Syntax::Json,
        user: ".claude.json",
        folder_variable: Some("CLAUDE_CONFIG_DIR"),
        project: &[".mcp.json"],
        servers: MCP_SERVERS,
        references: &["${"],
    },
    Client {
        name: "claude-desktop",
        syntax: Syntax::Json,
        user: ".config/Claude/claude_desktop_config.json",
        folder_variable: None,
        project: &[],
        servers: MCP_SERVERS,
        references: &[],
    },
    Client {
        name: "cursor",
        syntax: Syntax::Json,
        user: ".cursor/mcp.json",
        folder_variable: None,
        project: &[".cursor/mcp.json"],
        servers: MCP_SERVERS,
        references: &["${env:"],
    },
    Client {
        name: "vscode",
        syntax: Syntax::Json,
        user: ".config/Code/User/mcp.json",
        folder_variable: None,
        project: &[".vscode/mcp.json"],
        servers: &[&["servers"]],
        references: &["${env:"],
    },
    Client {
        name: "codex",
        syntax: Syntax::Toml,
        user: ".codex/config.toml",
        folder_variable: Some("CODEX_HOME"),
        project: &[".codex/config.toml"],
        servers: &[&["mcp_servers"]],
        references: &[],
    },
    Client {
        name: "gemini",
        syntax: Syntax::Json,
        user: ".gemini/settings.json",
        folder_variable: None,
        project: &[".gemini/settings.json"],
        servers: MCP_SERVERS,
        references: &["${", "$"],
    },
    Client {
        name: "opencode",
        syntax: Syntax::Json,
        user: ".config/opencode/opencode.json",
        folder_variable: None,
        project: &["opencode.json", "opencode.jsonc"],
        servers: &[&["mcp"], &["mcp", "servers"]],
        references: &["{env:"],
    },
    Client {
        name: "zed",
        syntax: Syntax::Json,
        user: ".config/zed/settings.json",
        folder_variable: None,
        project: &[".zed/settings.json"],
        servers: &[&["context_servers"]],
        references: &[],
    },
    Client {
        name: "copilot",
        syntax: Syntax::Json,
        user: ".copilot/mcp-config.json",
        folder_variable: Some("COPILOT_HOME"),
        project: &[".mcp.json", ".github/mcp.json"],
        servers: MCP_SERVERS,
        references: &["${"],
    },
    Client {
        name: "goose",
        syntax: Syntax::Yaml,
        user: ".config/goose/config.yaml",
        folder_variable: None,
        project: &[],
        servers: &[&["extensions"]],
        references: &[],
    },
];

impl Client {
    /// The client whose file this is, by its name.
    pub fn of(file: &Path) -> Option<&'static Client> {
        CLIENTS.iter().find(|client| {
            let mut names = client.project.iter().chain([&client.user]);
            names.any(|name| file.ends_with(name))
        })
    }

    /// The user's file, whether or not it is there. `None`: this user has no home folder.
    pub fn user_file(&self, variable: settings::Variables<'_>) -> Option<PathBuf> {
        let named = self.folder_variable.and_then(variable).map(PathBuf::from);
        let usual = match self.user.strip_prefix(".config/") {
            Some(rest) => settings::folder(variable, "XDG_CONFIG_HOME", ".config")?.join(rest),
            None => settings::home(variable)?.join(self.user),
        };
        let path = match (named, usual.file_name()) {
            (Some(folder), Some(file)) if folder.is_absolute() => folder.join(file),
            _ => usual,
        };
        // opencode reads both.
        let commented = path.with_extension("jsonc");
        match self.name == "opencode" && !path.exists() && commented.exists() {
            true => Some(commented),
            false => Some(path),
        }
    }

    /// The files of a project, whether or not they are there.
    pub fn project_files(&self, folder: &Path) -> impl Iterator<Item = PathBuf> {
        self.project.iter().map(move |file| folder.join(file))
    }
}
