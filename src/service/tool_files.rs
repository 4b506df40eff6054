//! Which earlier artifacts are for which tools of a batch. Clients write it by tool
//! (`tool_resources`) or by file (`files`); both are the same map, and the map is either of them.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// In the place of a tool: every call of the batch.
pub const FOR_ALL: &str = "_all";

/// Ids by the name of their tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolFiles(BTreeMap<String, BTreeSet<String>>);

/// By tool: `{"data:plot": {"file_ids": ["…"]}}`.
pub type ToolResources = BTreeMap<String, ToolResource>;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolResource {
    pub file_ids: Vec<String>,
}

/// By file: `{"file_id": "…", "tools": [{"type": "data:plot"}]}`. Without tools it is for all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedFile {
    pub file_id: String,
    #[serde(default)]
    pub tools: Vec<ToolType>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolType {
    #[serde(rename = "type")]
    pub name: String,
}

impl ToolFiles {
    pub fn add(&mut self, tool: &str, file: &str) {
        let files = self.0.entry(tool.to_owned()).or_default();
        files.insert(file.to_owned());
    }

    pub fn extend(&mut self, other: ToolFiles) {
        for (tool, files) in other.0 {
            self.0.entry(tool).or_default().extend(files);
        }
    }

    /// The files that a call of this tool gets, each once.
    pub fn of(&self, tool: &str) -> BTreeSet<&str> {
        let lists = [tool, FOR_ALL].map(|name| self.0.get(name));
        let files = lists.into_iter().flatten().flatten();
        files.map(String::as_str).collect()
    }
}

impl From<&ToolResources> for ToolFiles {
    fn from(resources: &ToolResources) -> ToolFiles {
        let mut all = ToolFiles::default();
        for (tool, resource) in resources {
            for file in &resource.file_ids {
                all.add(tool, file);
            }
        }
        all
    }
}

impl From<&ToolFiles> for ToolResources {
    fn from(all: &ToolFiles) -> ToolResources {
        let resources = all.0.iter().map(|(tool, files)| {
            let file_ids = files.iter().cloned().collect();
            (tool.clone(), ToolResource { file_ids })
        });
        resources.collect()
    }
}

impl From<&[SharedFile]> for ToolFiles {
    fn from(files: &[SharedFile]) -> ToolFiles {
        let mut all = ToolFiles::default();
        for SharedFile { file_id, tools } in files {
            if tools.is_empty() {
                all.add(FOR_ALL, file_id);
            }
            for tool in tools {
                all.add(&tool.name, file_id);
            }
        }
        all
    }
}

impl From<&ToolFiles> for Vec<SharedFile> {
    fn from(all: &ToolFiles) -> Vec<SharedFile> {
        let mut files: BTreeMap<&str, Vec<ToolType>> = BTreeMap::new();
        for (tool, ids) in &all.0 {
            for id in ids {
                let name = tool.clone();
                files.entry(id).or_default().push(ToolType { name });
            }
        }
        let files = files.into_iter().map(|(id, tools)| SharedFile {
            file_id: id.to_owned(),
            tools,
        });
        files.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::{DefaultHasher, Hash, Hasher};

    /// Some map of few tools and files, so that they meet.
    fn some(seed: u32) -> ToolFiles {
        let mut all = ToolFiles::default();
        for step in 0..seed % 17 {
            let mut hasher = DefaultHasher::new();
            (seed, step).hash(&mut hasher);
            let drawn = hasher.finish();
            let tool = ["a:x", "a:y", "b:z", FOR_ALL][drawn as usize % 4];
            all.add(tool, &format!("file-{}", (drawn >> 8) % 5));
        }
        all
    }

    #[test]
    fn every_form_says_the_same() {
        for seed in 0..2000 {
            let all = some(seed);
            let by_tool = ToolResources::from(&all);
            let by_file = Vec::<SharedFile>::from(&all);
            assert_eq!(ToolFiles::from(&by_tool), all, "{seed}");
            assert_eq!(ToolFiles::from(by_file.as_slice()), all, "{seed}");
            let text = serde_json::to_string(&by_tool).expect("JSON");
            assert_eq!(
                serde_json::from_str::<ToolResources>(&text).ok(),
                Some(by_tool)
            );
            let text = serde_json::to_string(&by_file).expect("JSON");
            assert_eq!(
                serde_json::from_str::<Vec<SharedFile>>(&text).ok(),
                Some(by_file)
            );
            for tool in ["a:x", "a:y", "b:z", "none"] {
                for file in (0..5).map(|n| format!("file-{n}")) {
                    let is_named = |name| all.0.get(name).is_some_and(|it| it.contains(&file));
                    let gets = is_named(tool) || is_named(FOR_ALL);
                    assert_eq!(all.of(tool).contains(&*file), gets, "{seed} {tool} {file}");
                }
            }
        }
    }
}
