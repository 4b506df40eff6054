//! Skills over MCP (SEP-2640). rmcp has the types and checks the answers; what is read, and whether
//! it is still what was listed, is decided by the registry.

use super::listed::{contents, missing};
use crate::manifest::SKILL_FILE;
use crate::registry::{Tool, read_skill_file, skill_digests};
use crate::service::skills::skills_of;
use crate::service::{Caller, Service};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use rmcp::model::{
    CacheScope, DIRECTORY_MIME_TYPE, ErrorData, GetSkillResult, ListResourcesResult,
    ListSkillsResult, ReadResourceResult, Resource, Skill, SkillFrontmatter, SkillResource,
    SkillResources,
};
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;

pub const SCHEME: &str = "skill://";
/// What stands in an address as it is.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/');

/// The skills that one caller may know.
pub struct Skills(Vec<Arc<Tool>>);

/// What an address names.
struct Found<'a> {
    tool: &'a Tool,
    path: String,
}

impl Skills {
    pub fn of(service: &Service, caller: &Caller) -> Result<Skills, ErrorData> {
        let skills = skills_of(&service.catalog, caller);
        let skills = skills.map(Skills);
        skills.map_err(|fault| ErrorData::internal_error(fault.message, None))
    }

    pub fn list(&self) -> ListSkillsResult {
        let skills = self.0.iter().filter_map(|tool| entry(tool));
        ListSkillsResult::with_all_items(skills.collect())
            .with_ttl_ms(0)
            .with_cache_scope(CacheScope::Private)
    }

    pub fn get(&self, uri: &str) -> Result<GetSkillResult, ErrorData> {
        let found = self.find(uri).filter(|it| it.path == SKILL_FILE);
        let skill = found.and_then(|it| entry(it.tool)).ok_or_else(unknown)?;
        let mut result = GetSkillResult::new(skill);
        result.ttl_ms = Some(0);
        result.cache_scope = Some(CacheScope::Private);
        Ok(result)
    }

    pub fn directory(&self, uri: &str) -> Result<ListResourcesResult, ErrorData> {
        let found = self.find(uri).ok_or_else(unknown)?;
        let children = children(&found).ok_or_else(unknown)?;
        Ok(ListResourcesResult::with_all_items(children)
            .with_ttl_ms(0)
            .with_cache_scope(CacheScope::Private))
    }

    pub fn read(&self, uri: &str) -> Result<ReadResourceResult, ErrorData> {
        let Found { tool, path } = self.find(uri).ok_or_else(|| missing(uri))?;
        let bytes = read_skill_file(tool, &path).map_err(|_| missing(uri))?;
        let markdown = path.ends_with(".md").then_some("text/markdown");
        contents(uri, markdown, bytes)
    }

    fn find(&self, uri: &str) -> Option<Found<'_>> {
        let below = uri.strip_prefix(SCHEME)?.trim_end_matches('/');
        let (name, path) = below.split_once('/').unwrap_or((below, ""));
        let mut all = self.0.iter();
        Some(Found {
            tool: all.find(|tool| tool.manifest.display_name == name)?,
            path: percent_decode_str(path).decode_utf8().ok()?.into_owned(),
        })
    }
}

/// A file or folder that this caller's skills do not have.
fn unknown() -> ErrorData {
    ErrorData::invalid_params("This is neither a skill nor a folder of one.", None)
}

fn uri_of(tool: &Tool, path: &str) -> String {
    let path = utf8_percent_encode(path, PLAIN);
    format!("{SCHEME}{}/{path}", tool.manifest.display_name)
}

/// `None`: it cannot be read any more.
fn entry(tool: &Tool) -> Option<Skill> {
    let skill = tool.manifest.skill()?;
    let digests = skill_digests(tool).filter(|all| all.contains_key(SKILL_FILE))?;
    let front: SkillFrontmatter =
        serde_json::from_value(Value::Object(skill.front.clone())).ok()?;
    let files = digests.iter().map(|(path, digest)| {
        let size = skill.files.get(path).copied().unwrap_or_default();
        SkillResource::new(uri_of(tool, path), format!("sha256:{digest}"), size)
    });
    let files = SkillResources::Files(files.collect());
    Some(Skill::new(uri_of(tool, SKILL_FILE), front, files))
}

/// What lies directly in a folder. `None`: this is not a folder.
fn children(found: &Found<'_>) -> Option<Vec<Resource>> {
    let skill = found.tool.manifest.skill()?;
    let above = match found.path.as_str() {
        "" => String::new(),
        folder => format!("{folder}/"),
    };
    let mut folders = BTreeSet::new();
    let mut all = Vec::new();
    for (path, size) in &skill.files {
        let Some(below) = path.strip_prefix(&above) else {
            continue;
        };
        if let Some((folder, _)) = below.split_once('/') {
            folders.insert(folder);
            continue;
        }
        all.push(Resource::new(uri_of(found.tool, path), below).with_size(*size));
    }
    let folders = folders.into_iter().map(|name| {
        let uri = uri_of(found.tool, &format!("{above}{name}"));
        Resource::new(uri, name).with_mime_type(DIRECTORY_MIME_TYPE)
    });
    all.extend(folders);
    (!all.is_empty()).then_some(all)
}
